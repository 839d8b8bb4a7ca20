"""Runs exported to ONNX write what `dragoman predict --beam 1` writes, by onnxruntime alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.base.config import merge
from dragoman.runs import train
from dragoman.runs.tasks.config import build
from dragoman.training.display import Display
from tests.conftest import call, quiet_machine

WORDS = [word[start:] + word[:start] for word in ("abcdef", "ghijkl", "acegik", "bdfhjl") for start in range(6)]
TRANSFORMER = {
    "kind": "transformer", "layers": 1, "width": 16, "heads": 2, "feedforward": 32, "dropout": 0.0,
}  # fmt: skip
RECURRENT = {"kind": "recurrent", "embedding": 12, "width": 16, "dropout": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"encoder": TRANSFORMER, "decoder": TRANSFORMER},
    "recurrent": {"encoder": RECURRENT, "decoder": {**RECURRENT, "cell": "gru"}},
    "hard-attention": {"encoder": RECURRENT, "decoder": {**RECURRENT, "kind": "hard-attention"}},
    "hard-attention of order 0": {
        "encoder": RECURRENT,
        "decoder": {**RECURRENT, "kind": "hard-attention", "order": 0, "context": True},
    },
    "edit-transducer": {"encoder": RECURRENT, "decoder": {**RECURRENT, "kind": "edit-transducer"}},
    "copy-transducer": {"encoder": RECURRENT, "decoder": {**RECURRENT, "kind": "copy-transducer"}},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("onnx")
    (folder / "pairs.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in WORDS * 4))
    with quiet_machine(folder / "cache"):
        yield folder


def trained(place: Path, name: str, folder: str = "", **more: Any) -> Path:
    table = {
        "data": dict.fromkeys(("train", "valid"), str(place / "pairs.tsv")),
        "tokenizer": {"source": {"kind": "characters"}},
        "model": {"tie": "target", **MODELS[name]},
        "train": {"steps": 60, "validate_every": 60, "optimizer": {"learning_rate": 0.02, "warmup": 5}},
    }
    if name != "transformer":
        table["model"]["tie"] = "none"  # type: ignore[index]
    run = place / (folder or name)
    train(build(merge(table, more)), run, Display(quiet=True))
    return run


@pytest.mark.slow  # each export takes ten seconds
@pytest.mark.parametrize("name", list(MODELS))
def test_onnxruntime_writes_the_texts_of_greedy_search(place: Path, name: str) -> None:
    run, exported = trained(place, name), place / f"{name}-onnx"
    result = call("export", run, "--to", "onnx", "--output", exported)
    assert result.code == 0, result.err
    texts = "\n".join([*WORDS, "a", "abcdefghijkl"]) + "\n"
    expected = call("predict", run, "--beam", "1", stdin=texts.encode()).out
    alone = subprocess.run(
        [sys.executable, exported / "greedy.py"], input=texts, capture_output=True, text=True, check=True
    )
    assert alone.stdout == expected
    assert len(set(expected.splitlines())) > 10  # it has learned something
    batch = subprocess.run(
        [sys.executable, "-c", BATCHED, exported], input=texts, capture_output=True, text=True, check=True
    )
    assert batch.stdout == expected  # several rows of different lengths at once
    assert "torch" not in json.loads(batch.stderr)


BATCHED = """
import json, sys
sys.path.insert(0, sys.argv[1])
import greedy
decoder = greedy.GreedyDecoder(sys.argv[1])
source, target = (greedy.TextCodec(sys.argv[1], side) for side in ("source", "target"))
rows = decoder.decode([source.encode(line.rstrip("\\n")) for line in sys.stdin])
print("\\n".join(map(target.decode, rows)))
print(json.dumps([name for name in sys.modules if name in ("torch", "dragoman")]), file=sys.stderr)
"""


def test_all_reasons_are_said_at_once(place: Path) -> None:
    short = {"steps": 1, "validate_every": 1}
    encoder = {**TRANSFORMER, "attention": {"kind": "local", "window": 4}, "positions": {"kind": "relative"}}
    model = {"encoder": encoder, "decoder": {"kind": "convs2s", "width": 16}}
    run = trained(place, "transformer", "other", model=model, train=short)
    result = call("export", run, "--to", "onnx", "--output", place / "none")
    assert result.code == 2
    for reason in (
        "model.encoder.attention: found 'local', expected 'full'",
        "model.encoder.positions: found 'relative', expected one of 'sinusoidal'",
        "model.decoder.kind: found 'convs2s', expected one of 'transformer', 'recurrent'",
    ):
        assert reason in result.err
    result = call("export", run, "--to", "onnx", "--single", "--output", place / "none")
    assert result.code == 2
    assert "--single: onnx has no such option, expected --scores, --licence" in result.err
    assert not (place / "none").exists()
