"""The log of corrections: nothing that was acknowledged is lost, and damaged lines harm no other."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from dragoman.base.errors import DataError
from dragoman.data.correction_log import FILE, Correction, CorrectionLog, FullError
from tests.processes import CONTEXT


@pytest.fixture
def log(tmp_path: Path) -> CorrectionLog:
    log = CorrectionLog(tmp_path / "kept")
    log.create()
    return log


def sources(log: CorrectionLog) -> list[str]:
    return [item.source for item in log.read()]


@pytest.mark.parametrize("length", [1, 5, 60, 10_000])
def test_a_line_cut_anywhere_is_passed_over_and_nothing_after_it_is_lost(log: CorrectionLog, length: int) -> None:
    log.add(Correction("first", "a"))
    whole = log.path.read_bytes()
    log.add(Correction("cut", "b"))
    cut = log.path.read_bytes()
    log.path.write_bytes(cut[: min(len(cut) - 1, len(whole) + length)])
    log.add(Correction("next\nline\u2028", "c"))
    expected = ["first", "next\nline\u2028"] if length < 10_000 else ["first", "cut", "next\nline\u2028"]
    assert sources(log) == expected


def test_lines_that_are_no_corrections_are_passed_over(log: CorrectionLog) -> None:
    kept = log.add(Correction("good", "better", tag="de", version=2))
    wrong = kept.as_dict() | {"id": "x"}
    wrong.pop("state")
    lines = [b"", b"\0" * 100, b"\xff\xfe", b"[" * 100_000, b"[]", b'{"id": 3}']
    lines.append(b'{"id": "no", "state": "accepted", "time": ""}')
    changes: list[dict[str, object]] = [{"source": 3}, {"version": "1"}, {"more": ""}, {"time": None}]
    lines += [json.dumps(wrong | change).encode() for change in changes]
    with log.path.open("ab") as file:
        file.write(b"\n".join(lines))
    assert log.read() == [kept]


def test_decisions_replace_each_other_and_need_one_id(log: CorrectionLog) -> None:
    first, second = (log.add(Correction(name, name)) for name in "ab")
    log.decide([first.id[:11]], "accepted")
    log.decide([first.id, second.id], "rejected")
    log.decide([second.id], "accepted")
    assert log.read("accepted") == log.decide([second.id], "accepted")
    assert [item.id for item in log.read("rejected")] == [first.id]
    for given in ("", "nothing"):
        with pytest.raises(DataError, match="no such correction"):
            log.decide([second.id, given], "rejected")
    assert [item.id for item in log.read("accepted")] == [second.id]


def test_a_full_disk_leaves_no_half_line(log: CorrectionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.add(Correction("first", "a"))
    write = os.write

    def full(handle: int, data: bytes) -> int:
        write(handle, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            log.add(Correction("second", "b"))
    assert log.path.read_bytes().endswith(b"}\n")
    log.most_bytes = log.path.stat().st_size
    with pytest.raises(FullError, match="expected at most"):
        log.add(Correction("third", "c"))
    assert sources(log) == ["first"]


def test_neither_link_nor_missing_folder_is_written_or_read(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("")
    (tmp_path / FILE).symlink_to(tmp_path / "target")
    with pytest.raises(DataError, match="cannot be kept"):
        CorrectionLog(tmp_path).create()
    with pytest.raises(DataError, match="cannot be kept"):
        CorrectionLog(tmp_path / "target").create()
    with pytest.raises(DataError, match="not found"):
        CorrectionLog(tmp_path / "none").read()


def add_many(folder: Path, name: str) -> None:
    log = CorrectionLog(folder)
    for number in range(20):
        log.add(Correction(f"{name}{number}", "x" * 5_000))


def test_several_processes_write_at_once(log: CorrectionLog) -> None:
    writers = [CONTEXT.Process(target=add_many, args=(log.folder, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(sources(log)) == sorted(f"{name}{number}" for name in "abc" for number in range(20))
