"""Runs without a neural network work where torch cannot be imported, so that they start in a fraction of the time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.base.config import inline
from dragoman.classical import ngram
from dragoman.cli import guarded
from dragoman.data.tokenizers.base import EOS

KINDS = ("copy", "memorise", "nearest", "ngram-transducer", "phrase-based", "word-aligner")
# One process runs all commands. The import of a module that is None raises ImportError.
SCRIPT = """
import sys
sys.modules["torch"] = None
from dragoman.cli import guarded
from dragoman.base.config import inline
for line in sys.stdin:
    assert guarded(line.split()) == 0, line
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of every kind, and a file to predict and to evaluate."""
    folder = tmp_path_factory.mktemp("classical")
    words = [first + second for first in "abcdefgh" for second in "abcdefgh"]
    (folder / "pairs.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words), encoding="utf-8")
    (folder / "words.txt").write_text("ab\nha\n", encoding="utf-8")
    (folder / "test.tsv").write_text("ab\tba\nha\tah\n", encoding="utf-8")
    for kind in KINDS:
        config, data = folder / f"{kind}.toml", {"train": f"{folder}/pairs.tsv", "valid": f"{folder}/test.tsv"}
        config.write_text(
            f'preset = "{kind}"\ndata = {inline(data)}\ntokenizer.source.kind = "bytes"\n', encoding="utf-8"
        )
        assert guarded(["train", str(config), "--run", f"{folder}/{kind}"]) == 0
    return folder


def commands_without_torch(lines: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input="\n".join(lines), capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_kind_predicts(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = [f"predict {runs}/{kind} {runs}/words.txt --json --n-best 2" for kind in KINDS]
    found = commands_without_torch(lines)
    capfd.readouterr()
    for line in lines:  # here torch is there
        assert guarded(line.split()) == 0
    assert found == capfd.readouterr().out
    assert found.count("\n") == 2 * len(KINDS)


def test_other_commands(runs: Path) -> None:
    found = commands_without_torch(
        [
            f"translate {runs}/memorise {runs}/words.txt --output {runs}/out.txt",
            f"evaluate {runs}/ngram-transducer {runs}/test.tsv --json",
            f"evaluate {runs}/memorise {runs}/test.tsv --json",
            f"info {runs}/phrase-based",
            f"score {runs}/words.txt {runs}/words.txt",
        ]
    )
    assert (runs / "out.txt").read_text(encoding="utf-8") == "ba\nah\n"
    assert '"exact_match": 1.0' in found
    assert "target_offsets" in found  # a tensor of the phrase table


@pytest.fixture(scope="module")
def labelers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of fitted models that need no search, and data for each: words with tags, series with their next number."""
    folder = tmp_path_factory.mktemp("labelers")
    words = [first + second for first in "abcd" for second in "abcd"]
    tagged = "".join(f"{one} {two}\t{one[1].upper()} {two[1].upper()}\n" for one in words for two in words[::3])
    series = "".join(f"{n} {n + 1} {n + 2}\t{n + 3}\n" for n in range(20))
    kinds = {"hmm": ("tag", "characters", tagged), "kalman": ("regress", "numbers", series)}
    for kind, (task, units, lines) in kinds.items():
        (folder / f"{kind}.tsv").write_text(lines, encoding="utf-8")
        sources = [line.partition("\t")[0] for line in lines.splitlines()[:3]]
        (folder / f"{kind}.txt").write_text("".join(f"{source}\n" for source in sources), encoding="utf-8")
        table = f'task = "{task}"\ndata.train = "{folder}/{kind}.tsv"\ntokenizer.source.kind = "{units}"\n'
        (folder / f"{kind}.toml").write_text(f'{table}model.kind = "{kind}"\n', encoding="utf-8")
        assert guarded(["train", f"{folder}/{kind}.toml", "--run", f"{folder}/{kind}"]) == 0
    return folder


def test_taggers_and_forecasts(labelers: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = [f"predict {labelers}/{kind} {labelers}/{kind}.txt --json" for kind in ("hmm", "kalman")]
    lines += [f"evaluate {labelers}/{kind} {labelers}/{kind}.tsv --json" for kind in ("hmm", "kalman")]
    lines.append(f"info {labelers}/hmm")
    found = commands_without_torch(lines)
    capfd.readouterr()
    for line in lines:
        assert guarded(line.split()) == 0
    assert found == capfd.readouterr().out
    predictions = [json.loads(line) for line in found.splitlines()[:6]]
    assert [row["text"] for row in predictions[:3]] == ["A A", "A D", "A C"]
    assert [row["value"] for row in predictions[3:]] == pytest.approx([3, 4, 5], abs=0.5)


def test_a_language_model_of_n_grams(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """What it writes and measures without torch is what the search and the measure of all language models give."""
    words = ["the", "a", "dog", "cat", "sees", "eats", "big"]
    lines = [" ".join(words[(n * step) % 7] for step in range(1, 3 + n % 5)) for n in range(90)]
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "prompts.txt").write_text("the\na dog\n\n", encoding="utf-8")
    table = f'task = "language-model"\ndata.train = "{tmp_path}/text.txt"\ntokenizer.source.kind = "words"\n'
    commands = []
    for order in (1, 3):
        (tmp_path / "n.toml").write_text(f'{table}model = {{kind = "ngram", order = {order}}}\n', encoding="utf-8")
        assert guarded(["train", f"{tmp_path}/n.toml", "--run", f"{tmp_path}/{order}"]) == 0
        prompts = f"complete {tmp_path}/{order} --file {tmp_path}/prompts.txt --json"
        commands += [prompts, f"{prompts} --one-line", f"evaluate {tmp_path}/{order} {tmp_path}/text.txt --json"]
    assert guarded([*commands[-1].split(), "evaluation.dynamic=true"]) == 2
    assert "evaluation.dynamic: learns by gradients, found model.kind = " in capfd.readouterr().err
    found = [json.loads(line) for line in commands_without_torch(commands).splitlines()]
    capfd.readouterr()
    monkeypatch.setattr(ngram.NGramModel, "array_text", False)
    for command in commands:
        assert guarded(command.split()) == 0
    expected = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len(found) == len(expected) == 2 * (3 + 3 + 1)
    for own, other in zip(found, expected, strict=True):
        assert own == other if "text" in own else own == pytest.approx(other, rel=1e-12)


def test_a_text_in_parts_has_the_scores_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    text = np.concatenate([[EOS], generator.integers(3, 9, 200)]).astype(np.int32)
    rows = [row[:-1].tolist() for row in np.split(text[1:], np.flatnonzero(text[1:] == EOS) + 1) if len(row)]
    model = ngram.NGramModel(ngram.NGramConfig(order=3), 9).fit_rows(ngram.Ragged.of(rows))
    ((score, right, count),) = model.text_scores(text)
    monkeypatch.setattr(ngram, "PART", 7)
    parts = np.array(list(model.text_scores(text)))
    assert len(parts) == 29
    assert parts.sum(0) == pytest.approx([score, right, count])


def test_weights_of_another_model_are_named(labelers: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(labelers / "hmm", tmp_path / "run")
    shutil.copy(labelers / "kalman" / "weights.safetensors", run)
    assert guarded(["predict", str(run), f"{labelers}/hmm.txt"]) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"dragoman: {run}/weights.safetensors: the weights do not fit the configuration: ")
    assert error.count("\n") == 1


def test_a_device_that_does_not_exist_is_still_an_error(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert guarded(["predict", f"{runs}/copy", f"{runs}/words.txt", "--device", "nowhere"]) == 2
    assert "nowhere" in capfd.readouterr().err


def test_help_and_settings_of_decoding_methods() -> None:
    commands = ("predict", "complete", "evaluate", "translate")
    found = commands_without_torch([f"{command} --help" for command in commands] + ["predict --help-settings"])
    for text in ("method=ctc", "method.temperature", "method.metric", "as train takes them"):
        assert text in found


def test_a_server_is_ready(runs: Path) -> None:
    pytest.importorskip("fastapi")
    script = f"""
import sys
sys.modules["torch"] = None
from dragoman.serving import server
server.DrainingServer.run = lambda self, sockets: print("ready")
from dragoman.cli import guarded
assert guarded(["serve", "{runs}/ngram-transducer", "port=0"]) == 0
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr
