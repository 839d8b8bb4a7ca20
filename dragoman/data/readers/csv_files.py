"""Read pairs from comma-separated files, as spreadsheets write them: quoted cells, a header, commas or semicolons."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from dragoman.data.examples import Example, Fault, FaultError, make_example
from dragoman.data.readers.lines import numbered_lines, open_bytes
from dragoman.errors import ConfigError, nearest

HEADER_NAMES = {
    "source", "target", "src", "tgt", "trg", "input", "output", "text", "label", "sentence", "reference", "translation",
    "word", "pronunciation", "ipa", "phonemes", "english", "german", "french", "spanish", "question", "answer",
    "words", "tokens", "tag", "tags", "pos", "ner", "labels", "category", "sentences", "transcription",
}  # fmt: skip


def read_csv(
    path: Path, columns: tuple[str, ...], several_references: bool, limit: int, header: bool
) -> Iterator[Example | Fault]:
    """The examples and faults of a file; a first row of usual column names is a header, also if nobody said so.

    A quoted cell may not contain a line break.
    """
    numbers: list[int] | None = None
    delimiter = ","
    with open_bytes(path) as read:
        for number, line in enumerate(numbered_lines(read, str(path)), 1):
            if isinstance(line, Fault):
                yield line
                continue
            if number == 1:
                delimiter = ";" if line.count(";") > line.count(",") else ","
            try:
                cells = next(csv.reader([line], delimiter=delimiter, strict=True), [])
            except csv.Error as error:
                yield Fault(f"{path}:{number}", "wrong-columns", f"not a row of comma-separated cells ({error})")
                continue
            if numbers is None:
                named = header or any(not column.isdigit() for column in columns) or is_header(cells)
                numbers = chosen_columns(path, columns, cells if named else [])
                if named:
                    continue
            try:
                yield make_example(*pick(cells, numbers, several_references), str(path), number, limit)
            except FaultError as fault:
                yield Fault(f"{path}:{number}", fault.kind, fault.detail)


def is_header(cells: list[str]) -> bool:
    """Whether all cells of a first row are usual names of columns."""
    return bool(cells) and all(cell.strip().lower() in HEADER_NAMES for cell in cells)


def chosen_columns(path: Path, columns: tuple[str, ...], names: list[str]) -> list[int]:
    """The columns to read, from 0; none: the first two, or all where several references are read."""
    numbers = []
    for column in columns:
        if column in names:
            numbers.append(names.index(column))
        elif column.isdigit() and int(column) > 0:
            numbers.append(int(column) - 1)
        else:
            match = nearest(column, names)
            found = ", ".join(names) or "no names"
            suggestion = f" Did you mean '{match}'?" if match else ""
            raise ConfigError(f"columns: found '{column}', but the first line of {path} has {found}.{suggestion}")
    return numbers


def pick(cells: list[str], numbers: list[int], several_references: bool) -> tuple[str, list[str]]:
    """Source and references of a row."""
    wanted = max(numbers, default=1) + 1
    if len(cells) < wanted or (not numbers and not several_references and len(cells) != 2):
        detail = f"found {len(cells)} columns, expected {wanted if numbers else 2} with commas between them"
        raise FaultError("wrong-columns", detail)
    chosen = [cells[number] for number in numbers] if numbers else cells
    return chosen[0], chosen[1:]
