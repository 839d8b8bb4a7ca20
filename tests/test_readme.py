"""Every command and snippet of the README and of the tour works as written."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from dragoman.cli import cli, guarded
from examples import number_names

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICKSTART = (ROOT / "docs" / "tutorials" / "quickstart.md").read_text(encoding="utf-8")
COMMAND_LINE = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
SHORT = ["train.steps=4", "train.validate_every=4", "train.decode=4"]
sys.path.insert(0, str(ROOT / "tools"))
import record_tour  # noqa: E402


def test_every_command_is_in_the_table_and_the_two_of_make_are_in_the_readme() -> None:
    for name in cli.commands:
        assert f"`dragoman {name}" in COMMAND_LINE
    assert "\n    make demo " in README
    assert "\n    make test " in README


@pytest.mark.page
def test_the_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command of the tour runs, with short training, in one process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    number_names.main(["pairs.tsv", "test.tsv"])
    assert (len(Path("pairs.tsv").read_text().splitlines()), len(Path("test.tsv").read_text().splitlines())) == (
        4864,
        221,
    )
    ran = []
    for line in re.findall(r"^(?:\$ |    )(.*dragoman .*)$", record_tour.tour(QUICKSTART), re.MULTILINE):
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
        ran.append(arguments[0])
    assert ran == ["train", "predict", "evaluate", "info", "attention", "train", "new", "check", "train"]
    for name, page, lines in (("README.md", README, 2), ("docs/tutorials/quickstart.md", QUICKSTART, 1)):
        snippet = re.search(r"```python\n(.*?)```", page, re.DOTALL)
        assert snippet is not None
        capsys.readouterr()
        exec(compile(snippet[1], name, "exec"), {})
        assert len(capsys.readouterr().out.strip().splitlines()) == lines
    assert Path("attention.png").stat().st_size > 1000


def test_outputs_are_recorded_in_place() -> None:
    section = "a\n```console\n$ one\nold\n$ two\n```\n\nb\n"
    assert (
        record_tour.recorded(section, lambda command: f"{command}!\n")
        == "a\n```console\n$ one\none!\n$ two\ntwo!\n```\n\nb\n"
    )
    assert record_tour.shortened("reading …\n" + "".join(f"{line}\n" for line in range(40))).splitlines() == [
        *"012345", "…", *map(str, range(33, 40)),
    ]  # fmt: skip
    assert record_tour.without_times("in 2:33, 2 threads") == record_tour.without_times("in 0:12:01, 16 threads")
    assert record_tour.with_old_times("a\nin 2:33\nb\n", "a\nin 9:59\nnew\nc\n") == "a\nin 2:33\nnew\nc\n"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_tour_gives_the_recorded_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    """As a newcomer types it, in a new folder; only times may differ."""
    assert record_tour.main(["--check"]) == 0, capsys.readouterr().out
