"""The sources of a file of inputs, read as a run reads its own data; other columns are left out."""

from __future__ import annotations

from dragoman.data.config import DataConfig
from dragoman.data.formats.labels import TagFormat
from dragoman.data.readers.base import ReadOptions, SourceRow
from dragoman.data.tokenizers.base import TextPairTokenizer
from dragoman.decoding.constraints.spec import FIELDS
from dragoman.errors import DataError, nearest
from dragoman.runs import Run


def reads_tags(run: Run) -> bool:
    """Whether a source of the run is a sentence of words with tags."""
    return isinstance(run.task.example_format(run.config), TagFormat)


def number_of_texts(run: Run) -> int:
    """How many texts a source of the run has: two for a classifier of text pairs."""
    return 2 if isinstance(run.tokenizers()[0], TextPairTokenizer) else 1


def source_options(run: Run, data: DataConfig, table: bool = False) -> ReadOptions:
    """How to read sources; with a `table` lines have columns, also where the suffix of the file does not say so."""
    texts = number_of_texts(run)
    return ReadOptions(data.columns, data.header, texts=texts, lists=reads_tags(run), table=table)


def with_constraints(row: SourceRow, fields: tuple[str, ...], location: str) -> SourceRow:
    """The row with the fields of its record that constrain the output; a misspelt one is an error.

    Other fields, such as the target, have no effect.
    """
    for key in row.record:
        if key not in (*fields, *FIELDS) and (match := nearest(key, FIELDS)):
            raise DataError(f"{location}: found the field '{key}'. Did you mean '{match}'?")
    return SourceRow(row.text, {key: value for key, value in row.record.items() if key in FIELDS})
