"""Error messages about lines that cannot be used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dragoman.data.config import Files, paths_of
from dragoman.data.examples import Fault
from dragoman.errors import DataError

MAX_FAULTS = 100  # readers keep this many faults for messages
# A line with too many columns in a format of two columns, for which data.columns can choose others.
_EXTRA_COLUMNS = re.compile("found ([0-9]+) columns, expected 2(?! or)")


def too_few(files: Files, found: str) -> DataError:
    """The error for files with too few examples; an empty file is named."""
    paths = paths_of(files)
    empty = [path for path in paths if Path(path).is_file() and not Path(path).stat().st_size]
    if empty:
        return DataError(f"{', '.join(empty)}: the file is empty, expected at least 2 examples")
    return DataError(f"{', '.join(paths)}: {found}, expected at least 2")


def summarize_faults(faults: Sequence[Fault], count: int) -> str:
    """One line that quotes the first three of `count` faults."""
    shown = "; ".join(str(fault) for fault in faults[:3])
    return f"{shown} (and {count - 3} more)." if count > 3 else f"{shown}."


def fault_message(faults: Sequence[Fault], count: int) -> str:
    """The first three of `count` faults and what to do; `faults` are the first ones, up to MAX_FAULTS."""
    advice = columns_advice(faults) or encoding_advice(faults)
    action = f"{advice}, correct" if advice else "Correct"
    return f'{summarize_faults(faults, count)} {action} the lines, or skip such lines with data.faults="skip"'


def encoding_advice(faults: Sequence[Fault]) -> str:
    """How to convert a file in which many lines are no UTF-8; otherwise empty."""
    if sum(fault.kind == "bad-utf8" for fault in faults) < min(3, len(faults)):
        return ""
    return (
        "The text seems to be in another encoding: convert it, for example with "
        "`iconv -f WINDOWS-1252 -t UTF-8 IN > OUT` (WINDOWS-1250 for Central European text)"
    )


def columns_advice(faults: Sequence[Fault]) -> str:
    """How to set data.columns, if nearly all faulty lines have the same number of extra columns; otherwise empty."""
    counts = Counter(int(match[1]) for fault in faults if (match := _EXTRA_COLUMNS.match(fault.detail)))
    columns, lines = max(counts.items(), key=lambda item: item[1], default=(0, 0))
    if columns <= 2 or lines < 0.9 * len(faults):
        return ""
    if all("(word and tag)" in fault.detail for fault in faults):
        return f'Choose word and tag among the {columns} columns with data.columns, such as ["1", "{columns}"]'
    two_texts = f'two texts before a label or number: ["1", "2", "{columns}"]'
    return f'Choose among the {columns} columns with data.columns, such as ["1", "2"] ({two_texts})'
