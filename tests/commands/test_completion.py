"""Completion of the shells: what click's API and a real bash suggest, and how quickly."""

from __future__ import annotations

import os
import resource
import runpy
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dragoman.cli import cli
from dragoman.commands import completion
from dragoman.commands.completion import LineComplete, preset_names
from dragoman.runs.tasks.config import preset_names as all_presets
from tests.clock import check_time
from tests.conftest import call


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("runs/alpha", "runs/beta", "elsewhere/gamma"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.toml").touch()
    (tmp_path / "runs" / "no-run").mkdir()
    (tmp_path / "pairs.tsv").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def suggested(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("DRAGOMAN_COMPLETE", f"dragoman {line}")
    return [
        row.split("\t")[0] for row in LineComplete(cli, {}, "dragoman", "DRAGOMAN_COMPLETE").complete().splitlines()
    ]


LINES = {
    "": [*cli.commands],
    "tra": ["train", "translate"],
    "train --tr": ["--trials"],
    "train pairs.tsv preset=luong-2015": ["preset=luong-2015", "preset=luong-2015-small"],
    "train pairs.tsv ": ["data.", "model.", "preset=", "search.", "task=", "tokenizer.", "train."],
    "train pairs.tsv train.optimizer.warm": ["train.optimizer.warmup="],
    "train pairs.tsv task=cl": ["task=classify"],
    "train pairs.tsv tokenizer.source.kind=ch": ["tokenizer.source.kind=characters"],
    "train pairs.tsv model.encoder.cell.kind=ls": ["model.encoder.cell.kind=lstm"],
    "train runs/al": ["runs/alpha"],
    "train pai": [],  # the shell suggests files
    "train pairs.tsv data.train=pai": [],
    "predict ": ["runs/alpha", "runs/beta"],
    "predict elsewhere/": ["elsewhere/gamma"],
    "predict runs/alpha in.txt search.be": ["search.beam=", "search.beam_groups="],
    "complete runs/alpha method=": ["method=sampling"],
    "complete runs/alpha method.mo": [],
    "predict runs/alpha in.txt method.mo": ["method.mode="],
    "predict runs/alpha in.txt method=s": ["method=sampling", "method=shortlist"],
    "predict runs/alpha in.txt --device c": ["cpu", "cuda"],
    "evaluate runs/alpha test.tsv --metric chr": ["chrf", "chrf++"],
    "export runs/alpha --to o": ["onnx"],
    "new ca": ["caption"],
    "completion ": ["bash", "zsh", "fish"],
    "presets demo-r": ["demo-rnn"],
    "predict 'an open quote": [],
}


@pytest.mark.parametrize("line", LINES)
def test_suggestions(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert suggested(line, monkeypatch) == LINES[line]


def test_the_listed_names_are_those_of_the_package() -> None:
    written = Path(completion.__file__).with_name(completion.FILE).read_text(encoding="utf-8")
    tool = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "suggestions.py"))
    assert written == tool["collect"](), "run: python tools/suggestions.py"
    assert preset_names() == all_presets()


def test_an_answer_needs_no_heavy_package_and_is_quick(folder: Path, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom dragoman.cli import main\ntry:\n    main()\nfinally:\n"
        "    assert not {'torch', 'numpy', 'rich'} & set(sys.modules), sorted(sys.modules)"
    )
    environment = os.environ | {"DRAGOMAN_COMPLETE": "dragoman train pairs.tsv train.st", "PYTHONDONTWRITEBYTECODE": ""}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path / "compiled")
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert "train.steps=\tmaximum number of optimiser steps\n" in done.stdout
    check_time(min(spent), 0.3)
    wrong = environment | {"DRAGOMAN_COMPLETE": "dragoman nonsense "}
    done = subprocess.run([sys.executable, "-m", "dragoman"], env=wrong, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_real_bash_completes(folder: Path, tmp_path: Path) -> None:
    assert call("completion", "bash").code == 0
    command = tmp_path / "bin" / "dragoman"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m dragoman "$@"\n')
    command.chmod(0o755)
    root = str(Path(__file__).parent.parent.parent)
    environment = {"PATH": f"{command.parent}:{os.environ['PATH']}", "TERM": "dumb", "PYTHONPATH": root, "PS1": "> "}
    terminal, slave = os.openpty()
    shell = ["bash", "--norc", "--noprofile", "-i"]
    process = subprocess.Popen(shell, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    try:
        typed(terminal, 'eval "$(dragoman completion bash)"; echo re""ady\n', "ready")
        typed(terminal, "dragoman trai\t", "dragoman train ")
        typed(terminal, "x preset=luong-2015-\t", "preset=luong-2015-small ")
        typed(terminal, "\x15dragoman train x train.optimizer.wa\t", "train.optimizer.warmup=")  # and no space
        typed(terminal, "5 data.valid=pai\t", "data.valid=pairs.tsv ")
        typed(terminal, "\x15dragoman predict runs/a\t", "runs/alpha ")
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        os.close(slave)


def typed(terminal: int, keys: str, expected: str, seconds: float = 120.0) -> None:
    """Type keys and wait for the text that they bring about."""
    os.write(terminal, keys.encode())
    seen, end = "", time.monotonic() + seconds
    while expected not in seen:
        assert time.monotonic() < end, f"{keys!r}: {seen!r}"
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 65536).decode()
