"""A first line that seems to name columns, in a file that nobody said to have a header."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from dragoman.data.config import DataConfig, Files, file_list, paths_of
from dragoman.data.examples import file_of
from dragoman.data.languages import NAMES as LANGUAGES
from dragoman.data.languages import THREE_LETTERS
from dragoman.data.readers.base import READERS
from dragoman.data.readers.columns import HEADER_NAMES, is_header

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_ .-]{0,29}")
LATIN = re.compile(r"[A-Za-z]")
WORD = re.compile(r"[A-Za-z]+")
ONE_WORD = re.compile(r"[A-Za-z_]+")
CODES = {*LANGUAGES, *THREE_LETTERS}
# Words that names of columns are made of, beside HEADER_NAMES and the names of languages.
WORDS = {
    "pron", "pronunciations", "misspelling", "misspelled", "misspelt", "misspellings", "correct", "correction", "wrong",
    "incorrect", "error", "erroneous", "fixed", "id", "index", "idx", "sent", "col", "column", "field", "ref",
    "references", "hypothesis", "gloss", "definition", "term", "romanization", "transcript", "orthography", "phones",
    "phone", "pinyin", "lang", "language", "raw", "noisy", "clean", "mr", "utterance", "sql", "file", "path", "audio",
    "image", "filename", "url", "title", "summary", "article", "document", "texts", "inputs", "outputs", "sources",
    "targets", "translations", "written", "spoken", "normalization", "normalisation", "inflection", "inflected", "stem",
    "informal", "formal", "complex", "simplified", "paraphrase", "comment", "score", "human",
}  # fmt: skip
KNOWN = HEADER_NAMES | WORDS | {name.lower() for name in LANGUAGES.values()}


def is_in_another_script(rows: list[list[str]]) -> bool:
    """Whether the first row looks like names of columns above text in another script, as latin,hebrew above קמפה."""
    first, others = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    if len(others) < 10 or not all(NAME.fullmatch(cell) for cell in first):
        return False
    return any(not any(LATIN.search(row[number]) for row in others) for number in range(len(first)))


def names_column(cell: str) -> bool:
    """Whether a cell is made of words that name columns, such as "en", "source_text" or "misspelled word"."""
    words = [word.lower() for word in WORD.findall(cell)]
    return cell.strip().lower() in CODES or (bool(words) and all(word in KNOWN for word in words))


def looks_like_header(rows: list[list[str]]) -> bool:
    """Whether the first of some rows seems to name columns: by the words it has, or since it is unlike the others.

    A first pair of ordinary data must not: such words must fill every cell, or all but those that are single words
    above a column without any. Codes of languages are also words (no, so, it), so most rows must be longer.
    """
    if not rows or len(rows[0]) < 2:
        return False
    cells = [cell.strip() for cell in rows[0]]
    if len({cell.lower() for cell in cells}) < len(cells) or not all(map(NAME.fullmatch, cells)):
        return False
    others = [row for row in rows[1:] if len(row) == len(cells)]
    if any(row == rows[0] for row in others):
        return False
    if all(cell.lower() in CODES for cell in cells):
        short = sum(all(len(cell.strip()) <= 3 for cell in row) for row in others)
        return short * 20 <= len(others)
    named = [names_column(cell) for cell in cells]
    return all(named) or is_in_another_script(rows) or (any(named) and _unlike_their_columns(cells, named, others))


def _unlike_their_columns(cells: list[str], named: list[bool], others: list[list[str]]) -> bool:
    """Whether each cell that names no column is a single word, and no other row has a single word there."""
    unknown = [number for number, known in enumerate(named) if not known]
    return len(others) >= 10 and all(
        ONE_WORD.fullmatch(cells[number]) and not any(ONE_WORD.fullmatch(row[number].strip()) for row in others)
        for number in unknown
    )


def header_warning(path: Path, how: str) -> str:
    """A warning if a file that is read without a header seems to have one; `how` says what to do. Else empty."""
    reader = READERS.of(path)
    rows = reader.first_rows(path)
    if not looks_like_header(rows) or reader.skips_header(rows[0]):
        return ""
    return f"{path}:1 looks like a header ({', '.join(rows[0])}) but is read as data; if it names the columns, {how}"


def begins_with_header(data: DataConfig, path: Path, warn: Callable[[str], None]) -> bool:
    """Whether a file has a header as the training file has one; a first line of other words is read as data, and told.

    It is trusted to have one if columns have names, or if one of both files cannot be read now.
    """
    files = (path, *map(Path, paths_of(data.train)))
    rows, *others = (READERS.of(file).first_rows(file) for file in files)
    trained = [cells[0] for cells in others if cells]
    named = any(not column.isdigit() for column in data.columns)
    if named or not rows or not trained or rows[0] in trained or is_header(rows[0]):
        return True
    warn(
        f"{path}:1 is not the header of the training file and is read as data; add data.header=true if it names the "
        "columns"
    )
    return False


def header_warnings(data: DataConfig) -> Iterator[str]:
    """Warnings about the training and validation files of a configuration."""
    if data.header or any(not column.isdigit() for column in data.columns):
        return
    for files in (data.train, data.valid):
        for path in paths_of(files) if files is not None else ():
            if warning := header_warning(Path(path), "add data.header=true"):
                yield warning


def header_row(files: Files, data: DataConfig) -> tuple[str, ...]:
    """The names in the first line of the files, if all of them begin with a header that nobody declared."""
    names: tuple[str, ...] = ()
    for entry in file_list(files):
        path = file_of(entry)
        if data.header or path is None:
            return ()
        rows = READERS.of(path).first_rows(path)
        if not rows or len(rows[0]) < 2 or not (is_header(rows[0]) or is_in_another_script(rows)):
            return ()
        names = tuple(rows[0])
    return names
