"""Run the tour of docs/tutorials/quickstart.md in a new folder and write the outputs into the page.

python tools/record_tour.py            record
python tools/record_tour.py --check    compare with what is recorded; times may differ
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tutorials" / "quickstart.md"
FIRST, LAST = 6, 7  # lines of a long output that are shown
TOUR = re.compile(r"(?<=^## A tour\n)(.*?)(?=^## )", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def tour(page: str) -> str:
    """The section of the page."""
    found = TOUR.search(page)
    assert found is not None, "docs/tutorials/quickstart.md has no section 'A tour'"
    return found[1]


def commands(text: str) -> list[str]:
    return re.findall(r"^\$ (.*)$", text, re.MULTILINE)


def recorded(section: str, run: Callable[[str], str]) -> str:
    """The section with the outputs that `run` gives for the commands, in order."""

    def block(found: re.Match[str]) -> str:
        return "```console\n" + "".join(f"$ {command}\n{run(command)}" for command in commands(found[1])) + "```"

    return BLOCK.sub(block, section)


def shell(folder: Path) -> Callable[[str], str]:
    """Runs commands in a folder, with the `dragoman` of this checkout and its examples."""
    (folder / "examples").symlink_to(ROOT / "examples")
    command = folder / ".bin" / "dragoman"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m dragoman "$@"\n')
    command.chmod(0o755)
    (command.parent / "python").symlink_to(sys.executable)
    environment = os.environ | {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "140",
        "DRAGOMAN_CACHE": str(folder / ".cache"),
    }  # fmt: skip

    def run(command: str) -> str:
        print(f"$ {command}", file=sys.stderr, flush=True)
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return shortened(done.stdout.replace(f"{folder}/", ""))  # a reader has another folder

    return run


def shortened(output: str) -> str:
    lines = [line.rstrip() for line in output.splitlines() if not line.endswith(" …")]  # no "reading …"
    if len(lines) > FIRST + LAST + 12:  # a table of a few more lines stays whole
        lines = [*lines[:FIRST], "…", *lines[-LAST:]]
    return "".join(f"{line}\n" for line in lines)


def without_times(text: str) -> str:
    return re.sub(r"\b\d+(:\d\d)+\b|\b\d[\d,.]* (s|ms|tokens/s)\b|\d+ threads?", "…", text)


def with_old_times(old: str, new: str) -> str:
    """The new text; a line that differs from the old one in times alone stays, so a slow machine changes no page."""
    old_lines, new_lines = old.splitlines(keepends=True), new.splitlines(keepends=True)
    known, found = ([without_times(line) for line in lines] for lines in (old_lines, new_lines))
    matcher = difflib.SequenceMatcher(a=known, b=found, autojunk=False)
    return "".join(
        "".join(old_lines[a:b] if same == "equal" else new_lines[c:d]) for same, a, b, c, d in matcher.get_opcodes()
    )


def main(arguments: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        new = TOUR.sub(lambda found: recorded(found[1], shell(Path(folder))), page)
    if arguments == ["--check"]:
        old_lines, new_lines = (without_times(text).splitlines() for text in (page, new))
        difference = list(difflib.unified_diff(old_lines, new_lines, "recorded", "now", lineterm=""))
        print("\n".join(difference))
        return 1 if difference else 0
    PAGE.write_text(with_old_times(page, new), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
