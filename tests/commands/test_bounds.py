"""What users can cause is one line and exit code 2, never an internal error."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from dragoman.cli import is_out_of_memory
from tests.conftest import TrainedFolder, call

COMMANDS = [
    ("predict RUN test.tsv search.max_length=1000000000", "search.max_length: found 1000000000, expected at least"),
    (
        "predict RUN test.tsv search.coverage_penalty=1e308",
        "search.coverage_penalty: found 1e+308, expected at least 0",
    ),
    ("predict RUN test.tsv --beam 100000000", "--beam: found 100000000, expected at least 1 and at most 1000"),
    ("predict RUN test.tsv method=mbr method.samples=1000000000", "method.samples: found 1000000000, expected at"),
    (
        "evaluate RUN test.tsv --intervals evaluation.draws=1000000000",
        "evaluation.draws: found 1000000000, expected",
    ),
    ("shortlist RUN --likely 1000000000", "is not in the range"),
    ("train pairs.tsv search.beam=100000000 --run never", "search.beam: found 100000000"),
    ("score long.txt long.txt", "long.txt:1: found 40,000 words, expected at most 10,000"),
    ("check loop", "loop: the symbolic link leads to no file"),
    ("check dangling", "dangling: the symbolic link leads to no file"),
    ("check pipe", "pipe: found a pipe, which can be read only once"),
    ("train pipe --run never", "pipe: found a pipe, which can be read only once"),
]


@pytest.mark.parametrize(("command", "message"), COMMANDS)
def test_too_much_is_one_line(inside: TrainedFolder, command: str, message: str) -> None:
    if not Path("pipe").exists():
        os.mkfifo("pipe")
        Path("loop").symlink_to("loop")
        Path("dangling").symlink_to("nowhere")
        Path("long.txt").write_text("word " * 40_000 + "\n")
    result = call(*(word.replace("RUN", str(inside.run)) for word in command.split()))
    assert result.code == 2
    assert message in result.err
    assert "internal error" not in result.err
    assert result.err.count("\n") == 1
    assert not Path("never").exists()


@pytest.mark.parametrize("pattern", ["(" * 2000 + "a" + ")" * 2000, "(" * 60 + "a" + ")" * 60])
def test_deep_patterns_are_answered(inside: TrainedFolder, pattern: str) -> None:
    result = call("predict", inside.run, f"constraints.pattern={pattern}", stdin=b"ab\n")
    assert result.code in (0, 2)
    assert "internal error" not in result.err


def test_damaged_files_of_a_run_are_named(inside: TrainedFolder, tmp_path: Path) -> None:
    run = Path(shutil.copytree(inside.run, tmp_path / "run"))
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('5\n{"step": "x"}\n{"step": 3, "valid": 7}\n{"step": 1e9}\n[]\n' + "[" * 100_000 + "\n")
    assert call("info", run).code == 0
    (run / "tokenizer" / "source.json").write_text("[" * 100_000)
    result = call("predict", run, stdin=b"ab\n")
    assert result.code == 2
    assert "source.json: damaged tokenizer file" in result.err


def test_a_pipe_is_read_once(inside: TrainedFolder) -> None:
    fifo = inside.folder / "lines"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(b"ab\ncd\n"))
    writer.start()
    result = call("predict", inside.run, fifo)
    writer.join()
    fifo.unlink()
    assert result.code == 0, result.err
    assert len(result.lines) == 2


def test_errors_of_allocation_are_told_from_others() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    assert not is_out_of_memory(RuntimeError("shapes differ"))
