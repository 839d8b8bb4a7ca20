"""The sources of a file of inputs, read as `evaluate` reads its pairs: references and labels are left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dragoman.commands.layout import ReadingOptions
from dragoman.errors import DataError, nearest

if TYPE_CHECKING:
    from dragoman.data.config import DataConfig
    from dragoman.runs import Run


class Source(NamedTuple):
    """One input: its text, and the JSON object it came from."""

    text: str
    record: Mapping[str, Any] = {}


def read_sources(run: Run, file: str | None, reading: ReadingOptions) -> Iterator[Source]:
    """The inputs of a file or of standard input, in order; mistakes in options raise at the call.

    The columns of a .tsv file, the fields of a .jsonl or .parquet file and the sentences of a CoNLL file are those of
    the run's training data. In any other file, and without `--columns`, a whole line is a source.
    """
    from dragoman.data.formats.tags import TagFormat
    from dragoman.data.readers.lines import file_format, read_lines

    name = "-" if file is None else file
    data = reading.applied(run.config.data, name)
    plain = Path(name.lower().removesuffix(".gz").removesuffix(".zst"))
    columns = plain.suffix == ".tsv" or reading.columns is not None or bool(reading.header)
    if isinstance(run.task.example_format(run.config), TagFormat) and plain.suffix in (".tsv", ".conll", ".conllu"):
        return read_sentences(run, data, name)
    kind = "columns" if name == "-" else file_format(Path(name))[0]
    if kind == "parquet":
        return read_parquet_sources(run, data, name)
    lines = read_lines(file)
    if kind == "jsonl":
        return read_objects(lines, name, source_fields(run, data))
    return read_columns(lines, name, source_columns(run, data, name), data.header) if columns else whole(lines, run)


def number_of_texts(run: Run) -> int:
    """How many texts a source of the run has: two for a classifier of text pairs."""
    from dragoman.data.tokenizers.text_pair import TextPairTokenizer

    return 2 if isinstance(run.tokenizers()[0], TextPairTokenizer) else 1


def source_columns(run: Run, data: DataConfig, name: str) -> tuple[int, ...]:
    """The columns of a tab-separated file that hold the source, from 1."""
    from dragoman.data.readers.pairs import column_numbers, columns_from_header

    texts = number_of_texts(run)
    columns = data.columns[:texts] or tuple(str(number + 1) for number in range(texts))
    if data.header and name != "-":
        return columns_from_header(Path(name), columns)
    return column_numbers(Path(name), columns)


def source_fields(run: Run, data: DataConfig) -> tuple[str, ...]:
    """The fields of a JSON object that hold the source."""
    named = tuple(column for column in data.columns if not column.isdigit())[: number_of_texts(run)]
    return named or ("source",)


def whole(lines: Iterator[str], run: Run) -> Iterator[Source]:
    """Whole lines; one that looks like a row of columns is reported once, since it is read as one source."""
    from dragoman.data.config import paths_of

    tabs = number_of_texts(run) > 1 or run.task.head_decoder is not None or len(paths_of(run.config.data.train)) > 1
    for number, line in enumerate(lines, 1):
        if not tabs and "\t" in line:
            tabs = True
            click.echo(
                f"warning: input {number} has a tab and is read as one source, tab included; to read the first column "
                "alone add --columns 1",
                err=True,
            )
        yield Source(line)


def read_columns(lines: Iterator[str], name: str, columns: tuple[int, ...], header: bool) -> Iterator[Source]:
    """The source columns of every line after the header; a line without tabs is a source as a whole."""
    for number, line in enumerate(lines, 1):
        if header and number == 1:
            continue
        cells = line.split("\t")
        if len(cells) == 1 and len(columns) == 1:
            yield Source(line)
        elif not line.strip():
            yield Source("")
        elif len(cells) < max(columns):
            raise DataError(f"{name}:{number}: found {len(cells)} columns, expected at least {max(columns)}")
        else:
            yield Source("\t".join(cells[column - 1] for column in columns))


def read_objects(lines: Iterator[str], name: str, fields: tuple[str, ...]) -> Iterator[Source]:
    """The source of every JSON object, or a JSON text alone; empty lines stay empty."""
    for number, line in enumerate(lines, 1):
        yield source_of_object(line, f"{name}:{number}", fields) if line.strip() else Source("")


def source_of_object(line: str, location: str, fields: tuple[str, ...]) -> Source:
    """The source of one line of JSON; `fields` are the names of its texts."""
    from dragoman.data.readers.records import number_text
    from dragoman.decoding.constraints.spec import FIELDS

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


def read_sentences(run: Run, data: DataConfig, name: str) -> Iterator[Source]:
    """The words of every sentence of a tagged file."""
    from dragoman.data.examples import Fault

    for item in run.task.example_format(run.config).read(data, name, False):
        if isinstance(item, Fault):
            raise DataError(f"{item}; to tag plain sentences put one on each line of a .txt file")
        yield Source(item.source)


def read_parquet_sources(run: Run, data: DataConfig, name: str) -> Iterator[Source]:
    """The source column of a Parquet file."""
    from dragoman.data.examples import Fault
    from dragoman.data.readers.lines import check_file
    from dragoman.data.readers.records import read_parquet

    check_file(Path(name))
    fields = source_fields(run, data)
    if len(fields) == 1:
        fields *= 2  # a row needs a second text; the source is used for it
    for item in read_parquet(Path(name), fields, False, data.max_characters):
        if isinstance(item, Fault):
            raise DataError(str(item))
        yield Source(item.source if fields[0] == fields[-1] else "\t".join((item.source, *item.references)))
