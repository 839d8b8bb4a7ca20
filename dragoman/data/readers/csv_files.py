"""Comma-separated files, as spreadsheets write them: quoted cells, a header, commas or semicolons."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from dragoman.data.examples import Example, Fault, FaultError, make_example
from dragoman.data.readers.base import ReadOptions, SourceRow
from dragoman.data.readers.columns import chosen_cells, chosen_columns
from dragoman.data.readers.lines import FIRST_ROWS, LineReader, SourceParser, first_lines, parse_lines

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


class CsvReader(LineReader):
    """Comma- or semicolon-separated columns. A quoted cell may not contain a line break."""

    suffixes = (".csv",)
    about = "comma-separated columns"
    delimiter = ","

    def pairs(self, path: Path, options: ReadOptions) -> Iterator[Example | Fault]:
        return self._pairs(path, options)

    def _pairs(self, path: Path, options: ReadOptions) -> Iterator[Example | Fault]:
        """The columns are looked up at the first item, since an empty or damaged file has none."""
        delimiter, numbers, header = _layout(path, options)

        def parse(line: str, number: int) -> Example:
            cells = _cells(line, delimiter)
            if len(cells) < max(numbers, default=2) or not (numbers or options.several_references or len(cells) == 2):
                expected = max(numbers, default=2)
                raise FaultError(
                    "wrong-columns", f"found {len(cells)} columns, expected {expected} with commas between them"
                )
            chosen = chosen_cells(cells, numbers) if numbers else cells
            return make_example(chosen[0], chosen[1:], str(path), number, options.max_characters)

        yield from parse_lines(path, parse, header)

    def source_parser(self, path: Path, options: ReadOptions) -> SourceParser:
        delimiter, numbers, header = _layout(path, options.of_sources)
        numbers = numbers or tuple(range(1, options.texts + 1))

        def parse(line: str) -> SourceRow:
            return SourceRow("\t".join(chosen_cells(_cells(line, delimiter), numbers)) if line.strip() else "")

        return SourceParser(parse, header)

    def first_rows(self, path: Path) -> list[list[str]]:
        lines = first_lines(path, FIRST_ROWS)
        try:
            return [_cells(line, csv_delimiter(lines[0])) for line in lines]
        except FaultError:
            return []  # reading the file says what is wrong

    def skips_header(self, cells: list[str]) -> bool:
        return is_header(cells)


def _layout(path: Path, options: ReadOptions) -> tuple[str, tuple[int, ...], bool]:
    """Delimiter, columns to read (from 1; none: the usual ones), and whether the first line is a header.

    A first row of usual column names is a header, also if nobody said so.
    """
    first = next(iter(first_lines(path, 1)), "")
    delimiter = csv_delimiter(first)
    try:
        cells = _cells(first, delimiter)
    except FaultError:
        cells = []
    header = options.header or any(not column.isdigit() for column in options.columns) or is_header(cells)
    return delimiter, chosen_columns(path, options.columns, cells if header else []), header


def csv_delimiter(first: str) -> str:
    """Semicolon or comma, by the first line of a file."""
    return ";" if first.count(";") > first.count(",") else ","


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error as error:
        raise FaultError("wrong-columns", f"not a row of comma-separated cells ({error})") from None


def is_header(cells: list[str]) -> bool:
    """Whether all cells of a first row are usual names of columns."""
    return bool(cells) and all(cell.strip().lower() in HEADER_NAMES for cell in cells)
