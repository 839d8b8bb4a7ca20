"""Runs without a neural network work where torch cannot be imported, so that they start in a fraction of the time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.cli import guarded
from dragoman.config.settings import inline

KINDS = ("copy", "memorise", "nearest", "ngram-transducer", "phrase-based", "word-aligner")
# One process runs all commands. The import of a module that is None raises ImportError.
SCRIPT = """
import sys
sys.modules["torch"] = None
from dragoman.cli import guarded
from dragoman.config.settings import inline
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


def test_a_device_that_does_not_exist_is_still_an_error(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert guarded(["predict", f"{runs}/copy", f"{runs}/words.txt", "--device", "nowhere"]) == 2
    assert "nowhere" in capfd.readouterr().err
