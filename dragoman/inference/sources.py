"""The source of one row of a file of inputs; references, labels and other columns are left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.data.config import DataConfig
from dragoman.data.readers.pairs import column_numbers, columns_from_header
from dragoman.data.readers.records import number_text
from dragoman.data.tokenizers.text_pair import TextPairTokenizer
from dragoman.decoding.constraints.spec import FIELDS
from dragoman.errors import DataError, nearest
from dragoman.runs import Run


class Source(NamedTuple):
    """One input: its text, and the JSON object it came from."""

    text: str
    record: Mapping[str, Any] = {}


ParseRow = Callable[[str, str], Source]  # of a line and its location; raises DataError


def is_table(name: str, columns: bool) -> bool:
    """Whether the lines of a file are rows of columns: those of a .tsv file, or if the user names columns."""
    plain = Path(name.lower().removesuffix(".gz").removesuffix(".zst"))
    return plain.suffix == ".tsv" or columns


def number_of_texts(run: Run) -> int:
    """How many texts a source of the run has: two for a classifier of text pairs."""
    return 2 if isinstance(run.tokenizers()[0], TextPairTokenizer) else 1


def source_columns(run: Run, data: DataConfig, name: str) -> tuple[int, ...]:
    """The columns of a tab-separated file that hold the source, from 1."""
    texts = number_of_texts(run)
    columns = data.columns[:texts] or tuple(str(number + 1) for number in range(texts))
    if data.header and name != "-":
        return columns_from_header(Path(name), columns)
    return column_numbers(Path(name), columns)


def source_fields(run: Run, data: DataConfig) -> tuple[str, ...]:
    """The fields of a JSON object that hold the source."""
    named = tuple(column for column in data.columns if not column.isdigit())[: number_of_texts(run)]
    return named or ("source",)


def source_of_object(line: str, location: str, fields: tuple[str, ...]) -> Source:
    """The source of one line of JSON; `fields` are the names of its texts."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{location}: found no JSON ({error})") from None
    if isinstance(record, str):
        return Source(record)
    expected = " and ".join(f'a text "{field}"' for field in fields)
    if not isinstance(record, dict):
        raise DataError(f"{location}: found {line[:60]!r}, expected an object with {expected}")
    texts = [number_text(record.get(field)) for field in fields]
    if not all(isinstance(text, str) for text in texts):
        found = ", ".join(f'"{key}"' for key in record) or "no field"
        raise DataError(f"{location}: found {found}, expected {expected} (--columns names another field)")
    for key in record:  # other fields, such as the target, have no effect; a misspelt constraint must not pass
        if key not in (*fields, *FIELDS) and (match := nearest(key, FIELDS)):
            raise DataError(f"{location}: found the field '{key}'. Did you mean '{match}'?")
    return Source("\t".join(texts), {key: value for key, value in record.items() if key in FIELDS})


def source_of_row(line: str, location: str, columns: tuple[int, ...]) -> Source:
    """The source columns of a line; a line without tabs is a source as a whole."""
    cells = line.split("\t")
    if len(cells) == 1 and len(columns) == 1:
        return Source(line)
    if not line.strip():
        return Source("")
    if len(cells) < max(columns):
        raise DataError(f"{location}: found {len(cells)} columns, expected at least {max(columns)}")
    return Source("\t".join(cells[column - 1] for column in columns))
