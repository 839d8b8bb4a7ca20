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


MANY_WORDS = 20  # lines of one word each that are hardly sentences


def read_sources(run: Run, file: str | None, reading: ReadingOptions) -> Iterator[Source]:
    """The inputs of a file or of standard input, in order; mistakes in options raise at the call.

    The columns of a .tsv or .csv file, the fields of a .jsonl or .parquet file and the sentences of a CoNLL file are
    those of the run's training data. In any other file, and without `--columns`, a whole line is a source.
    """
    from dragoman.data.formats.tags import TagFormat
    from dragoman.data.readers.conll import has_tagged_words
    from dragoman.data.readers.lines import file_format, is_csv, read_lines
    from dragoman.inference.sources import is_table, source_columns, source_fields

    name = "-" if file is None else file
    data = reading.applied(run.config.data, name)
    plain = Path(name.lower().removesuffix(".gz").removesuffix(".zst"))
    columns = is_table(name, reading.columns is not None or bool(reading.header))
    tags = isinstance(run.task.example_format(run.config), TagFormat)
    if tags and (plain.suffix in (".tsv", ".conll", ".conllu") or has_tagged_words(Path(name))):
        return read_sentences(run, data, name)
    if is_csv(Path(name)):
        return read_csv_sources(run, data, name)
    kind = "columns" if name == "-" else file_format(Path(name))[0]
    if kind == "parquet":
        return read_parquet_sources(run, data, name)
    lines = read_lines(file)
    if kind == "jsonl":
        return read_objects(lines, name, source_fields(run, data))
    if columns:
        return read_columns(lines, name, source_columns(run, data, name), data.header)
    return warn_of_single_words(whole(lines, run)) if tags else whole(lines, run)


def read_csv_sources(run: Run, data: DataConfig, name: str) -> Iterator[Source]:
    """The source cells of every row of a comma-separated file."""
    from dragoman.data.examples import Fault
    from dragoman.data.readers.csv_files import csv_rows
    from dragoman.inference.sources import Source, number_of_texts

    texts = number_of_texts(run)
    for row in csv_rows(Path(name), data.columns[:texts], data.header):
        if isinstance(row, Fault):
            raise DataError(str(row))
        numbers = row.columns or list(range(texts))
        if len(row.cells) <= max(numbers):
            raise DataError(
                f"{name}:{row.number}: found {len(row.cells)} columns, expected at least {max(numbers) + 1}"
            )
        yield Source("\t".join(row.cells[number] for number in numbers))


def warn_of_single_words(sources: Iterator[Source]) -> Iterator[Source]:
    """The sources; a warning if each of many is a single word, since a tagger reads a sentence on each line."""
    single = 0
    for source in sources:
        single = single + 1 if len(source.text.split()) == 1 else -MANY_WORDS
        if single == MANY_WORDS:
            click.echo(
                "warning: every line so far is a single word, and each is tagged alone; put a sentence on each line, "
                "or name the file .tsv and separate sentences by empty lines",
                err=True,
            )
        yield source


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
