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
    from dragoman.data.examples import Fault
    from dragoman.data.readers.base import SourceRow
    from dragoman.runs import Run

MANY_WORDS = 20  # lines of one word each that are hardly sentences


def read_sources(run: Run, file: str | None, reading: ReadingOptions) -> Iterator[SourceRow]:
    """The inputs of a file or of standard input, in order; mistakes in options raise at the call.

    The reader of the suffix finds the source as it does in training data: a column, a field, a side of a unit. In plain
    text, without `--columns`, a whole line is a source.
    """
    from dragoman.data.readers.base import READERS, suffix_of
    from dragoman.data.readers.conll import CONLL_SUFFIXES, has_tagged_words
    from dragoman.inference.sources import reads_tags, source_options

    name = "-" if file is None else file
    data = reading.applied(run.config.data, name)
    reader, tags = READERS.of(name), reads_tags(run)
    tabs = reader.table and reader.delimiter == "\t"
    if tags and (tabs or suffix_of(name) in CONLL_SUFFIXES or has_tagged_words(Path(name))):
        return read_sentences(run, data, name)
    options = source_options(run, data, table=reading.columns is not None or bool(reading.header))
    rows = usable(reader.sources(Path(name), options), name, options.columns)
    if reader.table or options.table:
        return rows
    return warn_of_single_words(warn_of_tabs(rows, run)) if tags else warn_of_tabs(rows, run)


def usable(rows: Iterator[SourceRow | Fault], name: str, fields: tuple[str, ...]) -> Iterator[SourceRow]:
    """The rows with their constraints; a faulty row is an error, since every row needs an answer."""
    from dragoman.data.examples import Fault
    from dragoman.inference.sources import with_constraints

    for number, row in enumerate(rows, 1):
        if isinstance(row, Fault):
            raise DataError(str(row))
        yield with_constraints(row, fields, f"{name}:{number}") if row.record else row


def warn_of_single_words(sources: Iterator[SourceRow]) -> Iterator[SourceRow]:
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


def warn_of_tabs(rows: Iterator[SourceRow], run: Run) -> Iterator[SourceRow]:
    """The rows of plain text; one that looks like a row of columns is reported once, since it is read as one source."""
    from dragoman.data.config import paths_of
    from dragoman.inference.sources import number_of_texts

    tabs = number_of_texts(run) > 1 or run.task.head_decoder is not None or len(paths_of(run.config.data.train)) > 1
    for number, row in enumerate(rows, 1):
        if not tabs and "\t" in row.text:
            tabs = True
            click.echo(
                f"warning: input {number} has a tab and is read as one source, tab included; to read the first column "
                "alone add --columns 1",
                err=True,
            )
        yield row


def read_sentences(run: Run, data: DataConfig, name: str) -> Iterator[SourceRow]:
    """The words of every sentence of a tagged file."""
    from dragoman.data.examples import Fault
    from dragoman.data.readers.base import SourceRow

    for item in run.task.example_format(run.config).read(data, name, False):
        if isinstance(item, Fault):
            raise DataError(f"{item}; to tag plain sentences put one on each line of a .txt file")
        yield SourceRow(item.source)
