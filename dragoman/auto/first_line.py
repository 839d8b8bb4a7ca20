"""Mistakes that the first line or the targets of a file of pairs give away: a header row, labels instead of texts."""

from __future__ import annotations

from pathlib import Path

from dragoman.auto.profile import PairProfile
from dragoman.data.config import DataConfig, Files, file_list
from dragoman.data.examples import Pairs
from dragoman.data.readers.base import READERS
from dragoman.data.readers.csv_files import is_header
from dragoman.data.readers.header import is_in_another_script

FEW_TARGETS, REPEATED = 30, 20  # at most so many different targets, each so often on average: labels


def header_row(files: Files, data: DataConfig) -> tuple[str, ...]:
    """The names in the first line of tab-separated files, if all of them begin with a header that nobody declared."""
    found: tuple[str, ...] = ()
    for entry in file_list(files):
        path = Path(str(entry.file if isinstance(entry, Pairs) else entry))
        if data.header or (isinstance(entry, Pairs) and entry.file is None):
            return ()
        rows = READERS.of(path).first_rows(path)
        if not rows or len(rows[0]) < 2 or not (is_header(rows[0]) or is_in_another_script(rows)):
            return ()
        found = tuple(rows[0])
    return found


def label_advice(profile: PairProfile) -> str:
    """Advice if the targets are labels rather than texts; empty otherwise."""
    few = 1 < profile.targets <= FEW_TARGETS and profile.pairs >= REPEATED * profile.targets
    if not few or profile.target.tokens > 2:
        return ""
    return (
        f"only {profile.targets} different targets occur in {profile.pairs:,} pairs: if they are labels, a classifier "
        "is smaller and better; add task=classify"
    )
