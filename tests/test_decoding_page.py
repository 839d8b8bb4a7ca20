"""The pages on decoding: every command and snippet works as written, and the reference names all settings."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.base.config.fields import fields_of
from dragoman.cli import guarded
from dragoman.commands.evaluate import SCHEMA
from dragoman.decoding.method import METHODS
from tests.conftest import SMALL, quiet_machine

ROOT = Path(__file__).parent.parent
GUIDES = [(ROOT / "docs" / "how-to" / name).read_text(encoding="utf-8") for name in ("constraints.md", "decoding.md")]
REFERENCE = (ROOT / "docs" / "reference" / "decoding.md").read_text(encoding="utf-8")
# A preset, because so few pairs would choose a model without an output layer that a shortlist could cut.
SHORT = ["preset=transformer-tiny", *SMALL, "train.steps=6", "train.validate_every=6", "train.decode=4"]
PATTERN = "(one|two|three) hundred( and)?( [a-z]+)?"


def write_data() -> None:
    """The files that the pages name."""
    script = str(ROOT / "examples" / "number_names.py")
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    rows = [line.split("\t") for line in printed.splitlines()][::4]
    Path("pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    Path("reversed.tsv").write_text("".join(f"{target}\t{source}\n" for source, target in rows), encoding="utf-8")
    Path("allowed.txt").write_text("ninety\ntwo hundred fifty\n", encoding="utf-8")
    Path("terms.tsv").write_text("250\thundred\n", encoding="utf-8")


@pytest.mark.page
def test_the_guides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_data()
    with quiet_machine(tmp_path / "cache"):
        assert guarded(["train", "pairs.tsv", *SHORT]) == 0
        printed, names = {}, {}
        for kind, block in re.findall(r"```(console|python)\n(.*?)```", "".join(GUIDES), re.DOTALL):
            if kind == "python":
                capsys.readouterr()
                exec(compile(block, "docs/how-to", "exec", dont_inherit=True), names)
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
        ("constraints.prefix=", lambda text: text.startswith("seven")),
        ("constraints.require=", lambda text: "hundred" in text and "one" in text and "thousand" not in text),
        ("constraints.allow=", lambda text: text in ("ninety", "two hundred fifty")),
        ("constraints.pattern=", lambda text: re.fullmatch(PATTERN, text)),
        ("constraints.constrain=", lambda text: text.startswith("two")),
    ):
        (lines,) = (lines for command, lines in printed.items() if option in command)
        assert len(lines) == 2
        assert all(satisfied(line) for line in lines)
    exhaustive = next(json.loads(lines[0]) for command, lines in printed.items() if "method=exhaustive" in command)
    assert len(exhaustive["alternatives"]) == 4
    assert 0 < exhaustive["probability"] < 1
    last = json.loads(list(printed.values())[-1][0])
    assert 0 < last["confidence"] < 1
    tree = json.loads(Path("trace.jsonl").read_text(encoding="utf-8"))
    assert {"kept", "complete"} <= {node["fate"] for node in tree["nodes"]}


def test_the_reference_names_every_setting_and_method() -> None:
    sections = ("search", "constraints", "ensemble", "rerank")
    rows = [f"| `{row.place}` | {row.note} |" for row in SCHEMA.static if row.place.startswith(sections)]
    assert not [row for row in rows if row not in REFERENCE]
    for entry in METHODS.values():
        names = ", ".join(f"`{name}`" for name in fields_of(entry.config))
        assert f"| `{entry.config.kind}` | {entry.about} | {names} |" in REFERENCE
