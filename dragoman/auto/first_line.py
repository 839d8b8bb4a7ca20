"""Mistakes that the first line or the targets of a file of pairs give away: a header row, labels instead of texts."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from dragoman.auto.profile import PairProfile
from dragoman.data.config import DataConfig, Files, file_list
from dragoman.data.examples import Pairs
from dragoman.data.readers.csv_files import csv_cells, csv_delimiter, is_header
from dragoman.data.readers.lines import file_format, first_lines, is_csv
from dragoman.data.readers.tmx import is_tmx

FIRST_ROWS = 200
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_ .-]{0,29}")
LATIN = re.compile(r"[A-Za-z]")
FEW_TARGETS, REPEATED = 30, 20  # at most so many different targets, each so often on average: labels


def header_row(files: Files, data: DataConfig) -> tuple[str, ...]:
    """The names in the first line of tab-separated files, if all of them begin with a header that nobody declared."""
    found: tuple[str, ...] = ()
    for entry in file_list(files):
        path = Path(str(entry.file if isinstance(entry, Pairs) else entry))
        if data.header or (isinstance(entry, Pairs) and entry.file is None):
            return ()
        rows = first_rows(path)
        if not rows or len(rows[0]) < 2 or not (is_header(rows[0]) or is_in_another_script(rows)):
            return ()
        found = tuple(rows[0])
    return found


def first_rows(path: Path) -> list[list[str]]:
    """The cells of the first lines of a tab- or comma-separated file; none if they cannot be read now."""
    if is_tmx(path) or file_format(path)[0] != "columns":
        return []
    lines = first_lines(path, FIRST_ROWS)
    if not is_csv(path):
        return [line.split("\t") for line in lines]
    try:
        return [csv_cells(line, csv_delimiter(lines[0])) for line in lines]
    except csv.Error:
        return []  # the reader says what is wrong


def is_in_another_script(rows: list[list[str]]) -> bool:
    """Whether the first row looks like names of columns above text in another script, as latin,hebrew above קמפה."""
    first, others = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    if len(others) < 10 or not all(NAME.fullmatch(cell) for cell in first):
        return False
    return any(not any(LATIN.search(row[number]) for row in others) for number in range(len(first)))


def label_advice(profile: PairProfile) -> str:
    """Advice if the targets are labels rather than texts; empty otherwise."""
    few = 1 < profile.targets <= FEW_TARGETS and profile.pairs >= REPEATED * profile.targets
    if not few or profile.target.tokens > 2:
        return ""
    return (
        f"only {profile.targets} different targets occur in {profile.pairs:,} pairs: if they are labels, a classifier "
        "is smaller and better; add task=classify"
    )
