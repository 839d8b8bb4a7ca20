"""Every command and snippet of the README works as written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.cli import cli, guarded

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
SHORT = ["train.steps=4", "train.validate_every=4", "train.decode=4"]


def commands() -> list[str]:
    return re.findall(r"^\$ (.*)$", README, re.MULTILINE)


def test_every_command_is_in_the_table() -> None:
    for name in cli.commands:
        assert f"`dragoman {name}" in README


def test_the_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    script = str(ROOT / "examples" / "number_names.py")
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    Path("pairs.tsv").write_text(printed, encoding="utf-8")
    Path("test.tsv").write_text("".join(printed.splitlines(keepends=True)[:20]), encoding="utf-8")
    ran = 0
    for line in commands():
        before, _, line = line.rpartition("| ")
        if before:
            Path("input.txt").write_text(before.split("'")[1].replace("\\n", "\n"), encoding="utf-8")
            line += " input.txt"
        line, _, output = line.partition(" > ")
        words = shlex.split(line)
        assert words[0] == "dragoman"
        arguments = words[1:]
        if arguments[0] in ("train", "check"):
            arguments += SHORT
        capsys.readouterr()
        assert guarded(arguments) == 0, (line, capsys.readouterr().err)
        if output:
            Path(output).write_text(capsys.readouterr().out, encoding="utf-8")
        ran += 1
    assert ran >= 8
    for name, page, lines in (("README.md", README, 2), ("docs/quickstart.md", QUICKSTART, 1)):
        snippet = re.search(r"```python\n(.*?)```", page, re.DOTALL)
        assert snippet is not None
        capsys.readouterr()
        exec(compile(snippet[1], name, "exec"), {})
        assert len(capsys.readouterr().out.strip().splitlines()) == lines
    assert Path("attention.png").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_command_as_written_in_a_clean_clone(tmp_path: Path) -> None:
    """The tour without any change: as a newcomer types it, in a fresh clone, with the `dragoman` of that clone."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    command = tmp_path / "bin" / "dragoman"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m dragoman "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(clone),
        "DRAGOMAN_CACHE": str(tmp_path / "cache"),
    }
    script = [sys.executable, str(clone / "examples" / "number_names.py")]
    lines = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines(keepends=True)
    (clone / "test.tsv").write_text("".join(lines[22::23]), encoding="utf-8")
    (clone / "pairs.tsv").write_text(
        "".join(line for number, line in enumerate(lines, 1) if number % 23), encoding="utf-8"
    )
    for line in commands():
        done = subprocess.run(
            line, shell=True, cwd=clone, env=environment, capture_output=True, text=True, timeout=1800, check=False
        )
        assert done.returncode == 0, (line, done.stderr[-2000:])
    snippet = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert snippet is not None
    done = subprocess.run(
        [sys.executable, "-c", snippet[1]], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("seven thousand forty-one ")
