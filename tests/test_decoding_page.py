"""Every command and snippet of docs/decoding.md works as written."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from dragoman.cli import guarded
from dragoman.commands.options import DECODING
from dragoman.decoding.config import SearchConfig
from tests.conftest import quiet_machine

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "decoding.md").read_text(encoding="utf-8")
# A preset, because so few pairs would choose a model without an output layer that a shortlist could cut.
SHORT = ["preset=transformer-tiny", "train.steps=6", "train.validate_every=6", "train.decode=4"]
PATTERN = "(one|two|three) hundred( and)?( [a-z]+)?"


def write_data() -> None:
    """The files that the page names."""
    script = str(ROOT / "examples" / "number_names.py")
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    rows = [line.split("\t") for line in printed.splitlines()][::4]
    Path("pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    Path("reversed.tsv").write_text("".join(f"{target}\t{source}\n" for source, target in rows), encoding="utf-8")
    Path("allowed.txt").write_text("ninety\ntwo hundred fifty\n", encoding="utf-8")
    Path("terms.tsv").write_text("250\thundred\n", encoding="utf-8")


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_data()
    with quiet_machine(tmp_path / "cache"):
        assert guarded(["train", "pairs.tsv", *SHORT]) == 0
        printed, names = {}, {}
        for kind, block in re.findall(r"```(console|python)\n(.*?)```", PAGE, re.DOTALL):
            if kind == "python":
                capsys.readouterr()
                exec(compile(block, "docs/decoding.md", "exec"), names)
                assert capsys.readouterr().out.strip()
                continue
            for line in block.splitlines():
                before, _, command = line.removeprefix("$ ").rpartition("| ")
                words = shlex.split(command)
                assert words[0] == "dragoman"
                if words[1] == "train":
                    words += SHORT
                if before:
                    Path("input.txt").write_text(shlex.split(before)[1].replace("\\n", "\n"), encoding="utf-8")
                    words.insert(3, "input.txt")
                capsys.readouterr()
                assert guarded(words[1:]) == 0, (line, capsys.readouterr().err)
                printed[command] = capsys.readouterr().out.splitlines()
    assert len(printed) > 15
    for option, satisfied in (
        ("--prefix", lambda text: text.startswith("seven")),
        ("--require", lambda text: "hundred" in text and "one" in text and "thousand" not in text),
        ("--allow", lambda text: text in ("ninety", "two hundred fifty")),
        ("--pattern", lambda text: re.fullmatch(PATTERN, text)),
        ("--constrain", lambda text: text.startswith("two")),
    ):
        (lines,) = (lines for command, lines in printed.items() if option in command)
        assert len(lines) == 2
        assert all(satisfied(line) for line in lines)
    exhaustive = next(json.loads(lines[0]) for command, lines in printed.items() if "--exhaustive" in command)
    assert len(exhaustive["alternatives"]) == 4
    assert 0 < exhaustive["probability"] < 1
    last = json.loads(list(printed.values())[-1][0])
    assert 0 < last["confidence"] < 1
    tree = json.loads(Path("trace.jsonl").read_text(encoding="utf-8"))
    assert {"kept", "complete"} <= {node["fate"] for node in tree["nodes"]}


def test_the_page_names_every_setting_and_option_of_search() -> None:
    page = PAGE.replace("-", "_")
    assert not [field.name for field in fields(SearchConfig) if field.name not in page]
    assert not [name for name in DECODING if name not in ("others", "rerank_tag") and name not in page]
