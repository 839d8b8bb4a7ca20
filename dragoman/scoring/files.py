"""Read hypotheses and references from files, line by line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.data.readers.lines import read_lines
from dragoman.errors import DataError


def read_parallel_lines(path: str | Path, other: str | Path, count: int) -> list[str]:
    """The lines of a file; raises DataError unless there are `count` of them, as in the file `other`."""
    lines = list(read_lines(path))
    if len(lines) != count:
        raise DataError(f"{path}: found {len(lines):,} lines, expected {count:,} as in {other}")
    return lines


def read_references(paths: Sequence[str | Path], other: str | Path, count: int) -> list[list[str]]:
    """The references of each segment: one line of every file, which may have several separated by tabs."""
    columns = [read_parallel_lines(path, other, count) for path in paths]
    return [
        [text for line in row for text in line.split("\t") if text.strip()] or [""]
        for row in zip(*columns, strict=True)
    ]
