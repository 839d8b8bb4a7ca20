"""Lines of columns: tab-separated, plain text whose lines may be columns, and comma-separated files of spreadsheets."""

from __future__ import annotations

import csv
from abc import abstractmethod
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import ClassVar

from dragoman.base import ConfigError, suggestion
from dragoman.data.examples import Example, Fault, FaultError
from dragoman.data.readers.base import ReadOptions, SourceRow, compression_of, example_from
from dragoman.data.readers.lines import (
    FIRST_ROWS,
    WHOLE,
    LineReader,
    Read,
    SourceParser,
    first_lines,
    open_bytes,
    parse_lines,
    text_blocks,
)

LARGE_FILE = 1 << 26  # bytes; of larger files `sample` reads blocks
SAMPLED_BLOCKS, SAMPLED_BYTES = 512, 1 << 14


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


class ColumnReader(LineReader):
    """Reads lines of columns."""

    default_columns = ("1", "2")

    @abstractmethod
    def splitter(self, first_line: str) -> Callable[[str], list[str]]:
        """What splits the lines of a file into cells; it raises FaultError."""

    @abstractmethod
    def layout(self, path: Path, options: ReadOptions) -> tuple[Callable[[str], list[str]], tuple[int, ...], bool]:
        """The splitter of a file, the columns to read (from 1; none: the usual ones), and whether it has a header."""

    def source_parser(self, path: Path, options: ReadOptions) -> SourceParser:
        if not (self.table or options.table):
            return SourceRow, False
        split, numbers, header = self.layout(path, options.of_sources)
        numbers = numbers or tuple(range(1, options.texts + 1))

        def parse(line: str) -> SourceRow:
            cells = split(line)
            if self.delimiter == "\t" and len(cells) == 1 and len(numbers) == 1:
                return SourceRow(line)  # a line without tabs is a source as a whole
            return SourceRow("\t".join(chosen_cells(cells, numbers)) if line.strip() else "")

        return parse, header

    def first_rows(self, path: Path) -> list[list[str]]:
        lines = first_lines(path, FIRST_ROWS)
        try:
            return list(map(self.splitter(lines[0]), lines)) if lines else []
        except FaultError:
            return []  # reading the file says what is wrong


class TextReader(ColumnReader):
    """Plain text and files of unknown suffix: pairs are columns, but a source is a whole line."""

    suffixes: ClassVar[tuple[str, ...]] = ("", ".txt")
    about = "lines of text"
    delimiter = "\t"
    table = False
    reads_spans = True

    def splitter(self, first_line: str) -> Callable[[str], list[str]]:
        return lambda line: line.split("\t")

    def layout(self, path: Path, options: ReadOptions) -> tuple[Callable[[str], list[str]], tuple[int, ...], bool]:
        return self.splitter(""), column_numbers(path, options), options.header

    def pairs(self, path: Path, options: ReadOptions) -> Iterator[Example | Fault]:
        return _read_columns(path, column_numbers(path, options), options)

    def sample(self, path: Path, options: ReadOptions) -> tuple[int, list[Example]] | None:
        if compression_of(path) or not path.is_file() or path.stat().st_size < LARGE_FILE:
            return None
        size = path.stat().st_size
        lines, last, parts = 0, b"", list[bytes]()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                lines, last = lines + block.count(b"\n"), block[-1:]
            lines += last != b"\n"
            for number in range(SAMPLED_BLOCKS):
                start = number * size // SAMPLED_BLOCKS
                file.seek(start)
                block = file.read(SAMPLED_BYTES)
                parts.append(block[block.find(b"\n") + 1 if start else 0 : block.rfind(b"\n")])
        items = list(_parse(BytesIO(b"\n".join(parts)).read, str(path), column_numbers(path, options), options))
        examples = [item for item in items if isinstance(item, Example)]
        # Many faulty lines: reading the whole file names them.
        return (lines - options.header, examples) if 2 * len(examples) > len(items) else None


class TsvReader(TextReader):
    """Tab-separated columns, by the suffix of the file."""

    suffixes = (".tsv",)
    about = "tab-separated columns"
    table = True


class CsvReader(ColumnReader):
    """Comma- or semicolon-separated columns. A quoted cell may not contain a line break."""

    suffixes = (".csv",)
    about = "comma-separated columns"
    delimiter = ","
    reads_spans = True

    def splitter(self, first_line: str) -> Callable[[str], list[str]]:
        delimiter = ";" if first_line.count(";") > first_line.count(",") else ","

        def split(line: str) -> list[str]:
            try:
                return next(csv.reader([line], delimiter=delimiter, strict=True), [])
            except csv.Error as error:
                raise FaultError("wrong-columns", f"not a row of comma-separated cells ({error})") from None

        return split

    def layout(self, path: Path, options: ReadOptions) -> tuple[Callable[[str], list[str]], tuple[int, ...], bool]:
        """A first row of usual column names is a header, also if nobody said so."""
        first = next(iter(first_lines(path, 1)), "")
        split = self.splitter(first)
        try:
            cells = split(first)
        except FaultError:
            cells = []
        header = options.header or any(not column.isdigit() for column in options.columns) or is_header(cells)
        return split, chosen_columns(path, options.columns, cells if header else []), header

    def pairs(self, path: Path, options: ReadOptions) -> Iterator[Example | Fault]:
        """The columns are looked up at the first item, since an empty or damaged file has none."""
        split, numbers, header = self.layout(path, options)
        minimum = max(numbers, default=2)

        def parse(line: str, number: int) -> Example:
            cells = split(line)
            if not line or line.isspace():
                raise FaultError("blank-line", "blank line")
            if len(cells) < minimum or not (numbers or options.several_references or len(cells) == 2):
                found = f"found {len(cells)} columns, expected {minimum} with commas between them"
                raise FaultError("wrong-columns", found)
            chosen = chosen_cells(cells, numbers) if numbers else cells
            return example_from(chosen, options, str(path), number)

        yield from parse_lines(path, parse, header, options.spans)

    def skips_header(self, cells: list[str]) -> bool:
        return is_header(cells)


def is_header(cells: list[str]) -> bool:
    """Whether all cells of a first row are usual names of columns."""
    return bool(cells) and all(cell.strip().lower() in HEADER_NAMES for cell in cells)


def column_numbers(path: Path, options: ReadOptions) -> tuple[int, ...]:
    """The columns to read as numbers from 1; with a header they may be names in the first line."""
    names: list[str] | None = None
    if options.header and str(path) != "-":
        with open_bytes(path) as read:
            first = next(text_blocks(read, str(path)), None)
        names = first.lines[0].split("\t") if first is not None else []
    return chosen_columns(path, options.columns, names)


def chosen_columns(path: Path, columns: tuple[str, ...], names: list[str] | None) -> tuple[int, ...]:
    """Columns as numbers from 1, each a number or one of the names of the header; None: there is no header."""
    numbers = []
    for column in columns:
        if names and column in names:
            numbers.append(names.index(column) + 1)
        elif column.isascii() and column.isdigit() and int(column) > 0:
            numbers.append(int(column))
        elif names is None:
            raise ConfigError(f"columns: found '{column}' for {path}, expected column numbers from 1")
        else:
            found = (", ".join(names) or "no names") + (suggestion(column, names) or ".")
            raise ConfigError(f"columns: found '{column}', but the first line of {path} has {found}")
    return tuple(numbers)


def chosen_cells(cells: list[str], numbers: tuple[int, ...]) -> list[str]:
    """The cells of some columns, counted from 1."""
    if len(cells) < max(numbers):
        raise FaultError("wrong-columns", f"found {len(cells)} columns, expected at least {max(numbers)}")
    return [cells[number - 1] for number in numbers]


def _read_columns(path: Path, numbers: tuple[int, ...], options: ReadOptions) -> Iterator[Example | Fault]:
    with open_bytes(path, span=options.spans[0] if options.spans else WHOLE) as read:
        yield from _parse(read, str(path), numbers, options)


def _parse(read: Read, name: str, numbers: tuple[int, ...], options: ReadOptions) -> Iterator[Example | Fault]:
    limit, several_references = options.max_characters, options.several_references
    for block in text_blocks(read, name, options.spans[0].line if options.spans else 1):
        plain = block.clean and not numbers and not several_references
        skipped = int(options.header and block.first == 1)
        for number, line in enumerate(block.lines[skipped:], block.first + skipped):
            if plain:  # most lines of most files: reading them takes half the time without the checks below
                source, _, target = line.partition("\t")
                if (
                    source
                    and target
                    and len(line) <= limit
                    and "\t" not in target
                    and not source.isspace()
                    and not target.isspace()
                ):
                    yield Example(source, (target,), name, number)
                    continue
            if number in block.faults:
                yield block.faults[number]
                continue
            try:
                cells = _cells(line, numbers, several_references)
                yield example_from(cells, options, name, number)
            except FaultError as fault:
                yield fault.at(f"{name}:{number}")


def _cells(line: str, numbers: tuple[int, ...], several_references: bool) -> list[str]:
    cells = line.split("\t")
    minimum = max(numbers, default=2)
    if len(cells) >= minimum and (numbers or several_references or len(cells) == 2):
        return [cells[number - 1] for number in numbers] if numbers else cells
    if not line or line.isspace():
        raise FaultError("blank-line", "blank line")
    found = f"{len(cells)} column" + ("s" if len(cells) > 1 else "")
    expected = f"at least {minimum}" if numbers else "2 or more" if several_references else "2"
    tabs = " with a tab between them" if len(cells) == 1 else ""  # commas or spaces probably separate the columns
    raise FaultError("wrong-columns", f"found {found}, expected {expected}{tabs}")
