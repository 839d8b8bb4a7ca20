"""No command writes over its own input or over a part of a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TrainedFolder, call, tree

COMMANDS = [
    "evaluate RUN FILE --output FILE",
    "evaluate RUN FILE --output LINK",
    "evaluate RUN FILE --output RUN/config.toml",
    "evaluate RUN FILE --output RUN/tokenizer/new.txt",
    "evaluate RUN FILE --output pairs.tsv",
    "predict RUN FILE beam_trace=FILE",
    "predict RUN FILE beam_trace=RUN/metrics.jsonl",
    "score FILE FILE --by-length --plot FILE",
    "attention RUN abc --output RUN/weights.safetensors",
    "info RUN --plot RUN/data.json",
    "shortlist RUN --output RUN/weights.safetensors",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_is_never_an_input_or_part_of_a_run(inside: TrainedFolder, tmp_path: Path, command: str) -> None:
    file = inside.write("t.tsv", "ab\tAB\ncd\tCD\n")
    link = tmp_path / "link"
    link.symlink_to(file)
    before = tree(inside.folder)
    words = [word.replace("RUN", str(inside.run)).replace("FILE", str(file)) for word in command.split()]
    result = call(*(str(link) if word == "LINK" else word for word in words))
    assert result.code == 2
    assert result.out == ""
    assert "this would overwrite the input" in result.err or "this is a part of the run" in result.err
    assert tree(inside.folder) == before


def test_a_file_of_ones_own_may_lie_in_a_run_folder(inside: TrainedFolder) -> None:
    path = inside.run / "outputs.txt"
    assert call("evaluate", inside.run, inside.write("t.tsv", "ab\tAB\n"), "--output", path).code == 0
    assert len(path.read_text(encoding="utf-8").splitlines()) == 1
    path.unlink()


def test_a_trace_replaces_its_file_only_at_the_end(inside: TrainedFolder, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("old")
    lines = inside.write("lines.jsonl", '{"source": "ab"}\nbroken\n')
    assert call("predict", inside.run, lines, f"beam_trace={trace}").code == 2
    assert trace.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]


def test_standard_output_may_not_be_the_input(inside: TrainedFolder) -> None:
    file = inside.write("both.txt", "ab\n")
    command = [sys.executable, "-m", "dragoman", "predict", str(inside.run), str(file)]
    with file.open("a") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=240, check=False)
    assert done.returncode == 2
    assert "standard output goes to this input" in done.stderr
    assert file.read_text() == "ab\n"
