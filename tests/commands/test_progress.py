"""The bar that a person at a terminal sees, and nobody else."""

from __future__ import annotations

import fcntl
import gzip
import os
import re
import struct
import sys
import termios
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dragoman.base.long_work import listening, progress_bar, track
from dragoman.commands.progress import LongWork
from dragoman.data.readers.lines import count_lines
from dragoman.decoding.mbr import expected_costs
from dragoman.scoring.significance import bootstrap_sums
from tests.conftest import TrainedFolder, call
from tests.processes import Command


def at_a_terminal(*arguments: str | Path, stdout: Path | None = None, stdin: bytes = b"") -> tuple[int, str]:
    """Exit code and what a terminal shows of standard error, or of both streams."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    try:
        with Path(stdout or os.devnull).open("wb") as file:
            reading, writing = os.pipe()
            os.write(writing, stdin)  # less than a pipe holds
            os.close(writing)
            streams = {0: reading, 1: theirs if stdout is None else file.fileno(), 2: theirs}
            process = Command(arguments, {"TERM": "xterm"}, streams)
            os.close(theirs)
            os.close(reading)
            shown = b""
            while True:
                try:
                    some = os.read(ours, 1 << 16)
                except OSError:  # Linux's way to say that the other end is closed
                    break
                if not some:
                    break
                shown += some
            code = process.wait(240)
    finally:
        os.close(ours)
    return code, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())


def test_predict_and_evaluate_show_a_bar(inside: TrainedFolder, tmp_path: Path) -> None:
    lines = "abc\n\njih\n" * 50
    path = inside.write("many.txt", lines)
    expected = call("predict", inside.run, path, "--beam", "1").out
    out = tmp_path / "out.txt"
    code, shown = at_a_terminal("predict", inside.run, path, "--beam", "1", stdout=out)
    assert (code, out.read_text()) == (0, expected)
    assert re.search(r"100% 150 of 150 lines, [\d,]+ a second", shown)
    code, shown = at_a_terminal("predict", inside.run, "--beam", "1", stdout=out, stdin=lines.encode())
    assert (code, out.read_text()) == (0, expected)
    assert re.search(r"\b150 lines, [\d,]+ a second", shown)
    assert "%" not in shown
    code, shown = at_a_terminal("evaluate", inside.run, inside.folder / "test.tsv", "--beam", "1", stdout=out)
    assert code == 0
    assert "100% 30 of 30 pairs" in shown
    assert out.read_text() == call("evaluate", inside.run, "test.tsv", "--beam", "1").out


def test_no_bar_among_the_outputs(inside: TrainedFolder) -> None:
    code, shown = at_a_terminal("predict", inside.run, "--beam", "1", stdin=b"abc\n")
    assert code == 0
    assert shown.replace("\r\n", "\n") == call("predict", inside.run, "--beam", "1", stdin=b"abc\n").out


def test_an_error_stands_on_a_line_of_its_own(inside: TrainedFolder, tmp_path: Path) -> None:
    path = inside.write("bad.txt", b"abc\n\xe9\n")
    code, shown = at_a_terminal("predict", inside.run, path, stdout=tmp_path / "out.txt")
    path.unlink()
    assert code == 2
    assert shown.split("\r\n")[-2].startswith(f"dragoman: {path}:2: found byte 0xe9")


def test_what_is_prepared_stands_on_lines_of_its_own(inside: TrainedFolder) -> None:
    path = inside.write("bad.tsv", b"abc\tcba\n" * 30 + b"abc\n")
    table = inside.write("bad.toml", '[data]\ntrain = "bad.tsv"\n[tokenizer.source]\nkind = "characters"\n')
    for command, doing in (("train", "reading …"), ("check", "checking lines …")):
        code, shown = at_a_terminal(command, table)
        assert code == 2
        lines = [line.rpartition("\r")[2] for line in shown.split("\r\n")]
        assert doing in lines
        assert lines[-2] == call(command, table).err.splitlines()[-1]
    assert call("check", table).err.count("\n") == 1  # nobody waits there
    path.unlink()
    table.unlink()


@pytest.mark.parametrize("content", [b"", b"a", b"a\n", b"a\nb", b"\n\n", b"x\n" * 700_000 + b"y"])
def test_lines_are_counted_as_they_are_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(content)
    assert count_lines(path) == len(content.decode().splitlines())


def test_only_plain_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"a\n"))
    os.mkfifo(tmp_path / "pipe")
    assert [count_lines(tmp_path / name) for name in ("x.gz", "pipe")] == [None, None]
    assert count_lines(None) is None


def test_standard_output_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with progress_bar("lines", 3) as done:
        assert sys.stdout is before
        done(3)
        print("data")
    said = capsys.readouterr()
    assert said.out == "data\n"
    assert "3 of 3 lines" in said.err


def test_long_work_says_how_long_it_will_take(capsys: pytest.CaptureFixture[str]) -> None:
    """100,000 draws and method=mbr with 10,000 samples ran for minutes without a word."""
    now = 0.0
    with listening(LongWork(lambda: now)):
        done = track("1,000 draws from 5 segments", 1000)
        for second in (1, 2, 3, 4, 60):
            now = float(second)
            done(10)
        done(950)
    assert capsys.readouterr().err.splitlines() == [
        "1,000 draws from 5 segments: 2% done, about 1:38 left",
        "1,000 draws from 5 segments: 4% done, about 1:36 left",
        "1,000 draws from 5 segments: 5% done, about 19:00 left",
    ]
    with listening(LongWork(lambda: now)):  # what is over in a few seconds prints nothing
        done = track("short", 10)
        for second in range(10):
            now = 60.0 + second
            done(1)
    assert not capsys.readouterr().err


def test_draws_and_samples_are_tracked() -> None:
    heard: list[tuple[str, int, int]] = []
    with listening(lambda *work: heard.append(work)):
        bootstrap_sums(np.ones((5000, 2)), draws=1700)
    assert heard == [("1,700 draws from 5,000 segments", done, 1700) for done in (0, 838, 1676, 1700)]
    heard.clear()
    texts = [f"{number:x}" for number in range(600)]
    with listening(lambda *work: heard.append(work)):
        costs = expected_costs(texts, Counter(texts), "cer")
    assert [done for _, done, _ in heard] == [0, 436, 600]
    assert costs == pytest.approx(
        expected_costs(texts[:300], Counter(texts), "cer") + expected_costs(texts[300:], Counter(texts), "cer")
    )
