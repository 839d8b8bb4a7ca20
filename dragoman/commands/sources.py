"""The sources of a file of inputs, read as `evaluate` reads its pairs: references and labels are left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.commands.layout import ReadingOptions
from dragoman.errors import DataError

if TYPE_CHECKING:
    from dragoman.data.config import DataConfig
    from dragoman.inference.sources import Source
    from dragoman.runs import Run


def read_sources(run: Run, file: str | None, reading: ReadingOptions) -> Iterator[Source]:
    """The inputs of a file or of standard input, in order; mistakes in options raise at the call.

    The columns of a .tsv file, the fields of a .jsonl or .parquet file and the sentences of a CoNLL file are those of
    the run's training data. In any other file, and without `--columns`, a whole line is a source.
    """
    from dragoman.data.formats.tags import TagFormat
    from dragoman.data.readers.lines import file_format, read_lines
    from dragoman.inference.sources import is_table, source_columns, source_fields

    name = "-" if file is None else file
    data = reading.applied(run.config.data, name)
    plain = Path(name.lower().removesuffix(".gz").removesuffix(".zst"))
    columns = is_table(name, reading.columns is not None or bool(reading.header))
    if isinstance(run.task.example_format(run.config), TagFormat) and plain.suffix in (".tsv", ".conll", ".conllu"):
        return read_sentences(run, data, name)
    kind = "columns" if name == "-" else file_format(Path(name))[0]
    if kind == "parquet":
        return read_parquet_sources(run, data, name)
    lines = read_lines(file)
    if kind == "jsonl":
        return read_objects(lines, name, source_fields(run, data))
    return read_columns(lines, name, source_columns(run, data, name), data.header) if columns else whole(lines, run)


def whole(lines: Iterator[str], run: Run) -> Iterator[Source]:
    """Whole lines; one that looks like a row of columns is reported once, since it is read as one source."""
    from dragoman.data.config import paths_of
    from dragoman.inference.sources import Source, number_of_texts

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
    """The source columns of every line after the header."""
    from dragoman.inference.sources import source_of_row

    for number, line in enumerate(lines, 1):
        if not (header and number == 1):
            yield source_of_row(line, f"{name}:{number}", columns)


def read_objects(lines: Iterator[str], name: str, fields: tuple[str, ...]) -> Iterator[Source]:
    """The source of every JSON object, or a JSON text alone; empty lines stay empty."""
    from dragoman.inference.sources import Source, source_of_object

    for number, line in enumerate(lines, 1):
        yield source_of_object(line, f"{name}:{number}", fields) if line.strip() else Source("")


def read_sentences(run: Run, data: DataConfig, name: str) -> Iterator[Source]:
    """The words of every sentence of a tagged file."""
    from dragoman.data.examples import Fault
    from dragoman.inference.sources import Source

    for item in run.task.example_format(run.config).read(data, name, False):
        if isinstance(item, Fault):
            raise DataError(f"{item}; to tag plain sentences put one on each line of a .txt file")
        yield Source(item.source)


def read_parquet_sources(run: Run, data: DataConfig, name: str) -> Iterator[Source]:
    """The source column of a Parquet file."""
    from dragoman.data.examples import Fault
    from dragoman.data.readers.lines import check_file
    from dragoman.data.readers.records import read_parquet
    from dragoman.inference.sources import Source, source_fields

    check_file(Path(name))
    fields = source_fields(run, data)
    if len(fields) == 1:
        fields *= 2  # a row needs a second text; the source is used for it
    for item in read_parquet(Path(name), fields, False, data.max_characters):
        if isinstance(item, Fault):
            raise DataError(str(item))
        yield Source(item.source if fields[0] == fields[-1] else "\t".join((item.source, *item.references)))
