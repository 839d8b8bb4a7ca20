"""`dragoman export`: a registered exporter writes a whole folder, or names every reason and writes nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from dragoman.exchange import registry
from dragoman.inference.load import load_predictor
from dragoman.runs import Run
from dragoman.runs.folder import hardware_of
from tests.conftest import TrainedFolder, call
from tests.exchange.test_huggingface_import import T5_LIKE, TEXTS, tiny_run


def test_export_to_ctranslate2(inside: TrainedFolder, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="the extra 'fast' (ctranslate2) is not installed")
    (tmp_path / "new").mkdir()
    folder = tmp_path / "new" / "exported"
    answer = call("export", inside.run, "--to", "ctranslate2", "--output", folder)
    assert answer.code == 0, answer.err
    assert answer.out == f"written: {folder}\n"
    assert re.search(r"compared on (\d+) validation lines by greedy search: \1 texts are equal", answer.err)
    assert {"model.bin", "config.json", "tokenizer", "README.md"} <= {path.name for path in folder.iterdir()}
    assert not [path.name for path in folder.parent.iterdir() if path != folder]
    again = call("export", inside.run, "--to", "ctranslate2", "--output", folder)
    assert again.code == 2
    assert "exists already; expected a new name" in again.err


@pytest.mark.parametrize("shared", [True, False])
def test_an_export_to_ctranslate2_translates_text_without_dragoman(tmp_path: Path, shared: bool) -> None:
    """The program in its README, as a stranger would run it."""
    pytest.importorskip("ctranslate2", reason="the extra 'fast' (ctranslate2) is not installed")
    run = tiny_run(tmp_path, "pre", "all" if shared else "target")
    folder = tmp_path / "exported"
    assert call("export", run, "--to", "ctranslate2", "--output", folder).code == 0
    program = (folder / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    lines = "".join(f"{text}\n" for text in TEXTS["source"])
    said = subprocess.run(
        [sys.executable, "-I", "-c", f"{program}\nassert 'dragoman' not in sys.modules"],
        input=lines, cwd=folder, capture_output=True, text=True, encoding="utf-8", timeout=240,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    expected = load_predictor(run, "cpu", engine="ctranslate2", beam=5).predict(TEXTS["source"])
    assert said.stdout.splitlines() == [one.text.strip() for one in expected]


def test_an_unknown_format_names_the_nearest(inside: TrainedFolder, tmp_path: Path) -> None:
    answer = call("export", inside.run, "--to", "ctranslate", "--output", tmp_path / "out")
    assert answer.code == 2
    assert "format: found 'ctranslate', no such format. Did you mean 'ctranslate2'?" in answer.err


class Blocked:
    """An exporter that cannot express anything, for two reasons."""

    name = "blocked"
    about = "nothing"

    def blockers(self, run: Run) -> list[str]:
        return ["first reason", "second reason"]

    def export(self, run: Run, path: Path, options: Mapping[str, str]) -> None:
        raise AssertionError("called in spite of blockers")


def test_all_reasons_are_told_at_once(inside: TrainedFolder, tmp_path: Path) -> None:
    blocked = Blocked()
    registry.EXPORTERS.add(blocked)
    try:
        assert "blocked: nothing" in " ".join(call("export", "--help").out.split())
        answer = call("export", inside.run, "--to", "blocked", "--output", tmp_path / "out")
    finally:
        registry.EXPORTERS.remove(blocked)
    assert answer.code == 2
    assert "blocked cannot express this run: first reason; second reason" in answer.err
    assert not (tmp_path / "out").exists()


def test_a_model_card_says_what_the_run_is(inside: TrainedFolder, tmp_path: Path) -> None:
    scores = tmp_path / "scores.json"
    scores.write_text('{"segments": 9, "bleu": 31.5, "intervals": {"bleu": [30, 33]}, "signatures": {"bleu": "a|b"}}')
    asked = ("export", inside.run, "--to", "card", "--licence", "CC0", "--scores", scores, "--output")
    answer = call(*asked, tmp_path / "card.md")
    assert answer.code == 0, answer.err
    card = (tmp_path / "card.md").read_text(encoding="utf-8")
    report = Run(inside.run).data
    assert f"| for training | {report['train']['pairs']:,} examples," in card
    assert f"blake2b {Run(inside.run).weights_digest()}" in card
    assert "| decoder | transformer, layers 1, width 32, heads 2 |" in card
    best = min(
        (row["valid"] for row in Run(inside.run).metrics() if "valid" in row),
        key=lambda valid: float(valid[Run(inside.run).config.train.metric]),
    )
    assert f"| loss | {best['loss']:.3f} |" in card
    assert "dragoman train config.toml --run pairs" in card
    assert "| bleu | 31.50; 95 % interval 30.00 to 33.00; a\\|b |" in card
    assert "| this run | CC0 |" in card
    assert f"| hardware | {hardware_of(inside.run)} |" in card
    assert hardware_of(inside.run)
    for wrong in ("[1]", '{"bleu": 3, "intervals": {"bleu": 7}}', "x"):
        scores.write_text(wrong)
        answer = call(*asked, tmp_path / "other.md")
        assert answer.code == 2
        assert "found no scores" in answer.err


@pytest.mark.parametrize("formats", ["ctranslate2 argos huggingface", pytest.param("onnx", marks=pytest.mark.slow)])
def test_a_t5_like_transformer_goes_into_every_format(tmp_path: Path, formats: str) -> None:
    """Trained on the command line with one vocabulary for both sides."""
    pairs = tmp_path / "pairs.tsv"
    rows = "".join(f"{source}\t{target}\n" for source, target in zip(TEXTS["source"], TEXTS["target"], strict=True))
    pairs.write_text(rows * 10, encoding="utf-8")
    alike = {name: json.dumps(value) for name, value in T5_LIKE.items()} | {"layers": 2, "width": 32, "feedforward": 48}
    sides = [f"model.{side}.{name}={value}" for side in ("encoder", "decoder") for name, value in alike.items()]
    trained = call(
        "train", pairs, "--run", tmp_path / "run", "preset=transformer-small", f"data.valid={pairs}", "model.tie=all",
        "tokenizer.source.kind=subwords", "tokenizer.target=none", "tokenizer.source.vocab_size=330", *sides,
        "train.steps=20", "train.validate_every=20", "train.optimizer.learning_rate=0.02", "train.optimizer.warmup=5",
        "train.device=cpu", f"data.cache={tmp_path / 'cache'}", "-q",
    )  # fmt: skip
    assert trained.code == 0, trained.err
    for name in formats.split():
        languages = ["--source-language", "en", "--target-language", "de"] if name == "argos" else []
        precision = [] if name in ("onnx", "huggingface") else ["--precision", "float32"]
        exported = call("export", tmp_path / "run", "--to", name, "--output", tmp_path / name, *languages, *precision)
        assert exported.code == 0, exported.err
        if name == "huggingface":
            assert written_by_transformers(tmp_path / name) == [
                one.text for one in load_predictor(tmp_path / "run", "cpu", beam=1).predict(TEXTS["source"])
            ]
            continue
        same = re.search(r"compared on (\d+) validation lines by greedy search: \1 texts are equal", exported.err)
        assert same, exported.err


def written_by_transformers(folder: Path) -> list[str]:
    model, tokenizer = (auto.from_pretrained(folder) for auto in (AutoModelForSeq2SeqLM, AutoTokenizer))
    written = model.generate(**tokenizer(TEXTS["source"], return_tensors="pt", padding=True), num_beams=1)
    texts: list[str] = tokenizer.batch_decode(written, skip_special_tokens=True)
    return texts
