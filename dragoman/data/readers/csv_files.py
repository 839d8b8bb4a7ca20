"""Read pairs from comma-separated files, as spreadsheets write them: quoted cells, a header, commas or semicolons."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dragoman.data.examples import Example, Fault, FaultError, make_example
from dragoman.data.readers.lines import numbered_lines, open_bytes
from dragoman.errors import ConfigError, nearest

HEADER_NAMES = {
    "source", "target", "src", "tgt", "trg", "input", "output", "text", "label", "sentence", "reference", "translation",
    "word", "pronunciation", "ipa", "phonemes", "english", "german", "french", "spanish", "question", "answer",
    "words", "tokens", "tag", "tags", "pos", "ner", "labels", "category", "sentences", "transcription", "class",
    "sentiment", "grapheme", "graphemes", "phoneme", "spelling", "sounds", "lemma", "form", "features", "old", "new",
    "modern", "original", "normalized", "normalised", "corrected", "latin", "hebrew", "arabic", "chinese", "czech",
    "dutch", "finnish", "greek", "hindi", "hungarian", "icelandic", "italian", "japanese", "korean", "polish",
    "portuguese", "romanian", "russian", "slovene", "slovenian", "swedish", "turkish", "ukrainian", "transliteration",
    "source_text", "target_text", "input_text", "output_text", "query", "response", "caption", "name",
}  # fmt: skip


def read_csv(
    path: Path, columns: tuple[str, ...], several_references: bool, limit: int, header: bool
) -> Iterator[Example | Fault]:
    """The examples and faults of a file."""
    for row in csv_rows(path, columns, header):
        if isinstance(row, Fault):
            yield row
            continue
        try:
            yield make_example(*pick(row, several_references), str(path), row.number, limit)
        except FaultError as fault:
            yield Fault(f"{path}:{row.number}", fault.kind, fault.detail)


class CsvRow(NamedTuple):
    """One row of a file."""

    number: int  # of its line, from 1
    cells: list[str]
    columns: list[int]  # those to read, from 0; empty: all


def csv_rows(path: Path, columns: tuple[str, ...], header: bool) -> Iterator[CsvRow | Fault]:
    """The rows after the header; a first row of usual column names is a header, also if nobody said so.

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
                delimiter = csv_delimiter(line)
            try:
                cells = csv_cells(line, delimiter)
            except csv.Error as error:
                yield Fault(f"{path}:{number}", "wrong-columns", f"not a row of comma-separated cells ({error})")
                continue
            if numbers is None:
                named = header or any(not column.isdigit() for column in columns) or is_header(cells)
                numbers = chosen_columns(path, columns, cells if named else [])
                if named:
                    continue
            yield CsvRow(number, cells, numbers)


def csv_delimiter(first: str) -> str:
    """Semicolon or comma, by the first line of a file."""
    return ";" if first.count(";") > first.count(",") else ","


def csv_cells(line: str, delimiter: str) -> list[str]:
    """The cells of one line; csv.Error if it is no row."""
    return next(csv.reader([line], delimiter=delimiter, strict=True), [])


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


def pick(row: CsvRow, several_references: bool) -> tuple[str, list[str]]:
    """Source and references of a row."""
    wanted = max(row.columns, default=1) + 1
    if len(row.cells) < wanted or (not row.columns and not several_references and len(row.cells) != 2):
        detail = f"found {len(row.cells)} columns, expected {wanted if row.columns else 2} with commas between them"
        raise FaultError("wrong-columns", detail)
    chosen = [row.cells[number] for number in row.columns] if row.columns else row.cells
    return chosen[0], chosen[1:]
