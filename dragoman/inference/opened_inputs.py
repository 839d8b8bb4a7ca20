"""One way to open inputs: files, lists, tables, recordings, pictures and standard input, for every run.

The command line, Python, shards and distillation read what a user gives through `open_inputs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from dragoman.base import ConfigError, DataError, nearest
from dragoman.data import DataConfig, Fault, ReadingOptions, Warn, media_inputs, paths_of
from dragoman.data.formats import MediaFormat, TagFormat
from dragoman.data.media import check_media_folder
from dragoman.data.readers import (
    CONLL_SUFFIXES,
    READERS,
    ReadOptions,
    SourceRow,
    check_file,
    has_tagged_words,
    read_lines,
    source_rows,
    suffix_of,
)
from dragoman.data.tokenizers import TextPairTokenizer
from dragoman.decoding.constraints import FIELDS, NO_CONSTRAINTS, ConstrainedInput, parse_constraints
from dragoman.inference.long_inputs import warn_caller
from dragoman.runs import Run

AS_TRAINED = ReadingOptions()
MANY_WORDS = 20  # lines of one word each that are hardly sentences
SHOWN = 200  # characters of a faulty row


class FaultyInput(NamedTuple):
    """An input that cannot be used."""

    place: str
    reason: str
    text: str = ""  # the beginning of its row

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


def warn_user(message: str) -> None:
    warn_caller(None, message)


def open_inputs(
    run: Run, data: Path | Iterable[object] | None, reading: ReadingOptions = AS_TRAINED, warn: Warn = warn_user
) -> Iterator[ConstrainedInput]:
    """The inputs that a user gives to a run, with the constraints on each output; a faulty one raises DataError.

    `data` are a file, rows in memory, or None for standard input, which is read line by line. The reader of the suffix
    finds the source as it does in training data: a column, a field, a side of a unit. In plain text, without columns in
    `reading`, a whole line is a source. A mistake in `reading` raises at the call.
    """
    check_reading(run, reading)
    if isinstance(data, list | tuple) and not any(isinstance(item, Mapping) for item in data):
        return iter([item if isinstance(item, ConstrainedInput) else ConstrainedInput(item) for item in data])
    config, path = run.config.data, Path("-") if data is None else data
    if not isinstance(path, Path):
        options = source_options(run, config)
        return map(usable, typed(source_rows(path, options), "row ", options.columns))
    if reads_files(run):
        listed = media_inputs(path, config, run.config.tokenizer.source, reading, warn)
        return (ConstrainedInput(item.path, place=item.place) for item in listed)
    inputs = map(usable, read_inputs(run, path, reading.applied(config, path, warn), reading.table))
    plain = not (READERS.of(path).table or reading.table or has_sentences(run, path) or run.task.is_language_model)
    return warn_of_layout(inputs, run, warn) if plain else inputs


def read_inputs(
    run: Run, path: Path, data: DataConfig, table: bool, span: tuple[int, int] | None = None
) -> Iterator[ConstrainedInput | FaultyInput]:
    """The inputs of a file of texts, read as `data` says; with `span` those of a shard, whose places are numbers.

    With a `table` lines have columns, also where the suffix of the file does not say so.
    """
    reader, options = READERS.of(path), source_options(run, data, table)
    if span is not None:
        return (
            FaultyInput(str(row.place), row.fault, row.shown)
            if row.source is None
            else with_constraints(row.source, str(row.place), options.columns)
            for row in reader.shard(path, options, *span)
        )
    prefix = "" if str(path) == "-" else f"{path}:"
    if prefix and not path.is_fifo():
        check_file(path)
    if has_sentences(run, path):
        return typed(tagged_sentences(run, path, data), prefix)
    if run.task.is_language_model:
        return typed(prompts(path), prefix)
    return typed(reader.sources(path, options), prefix, options.columns)


def typed(
    rows: Iterable[SourceRow | Fault], prefix: str, fields: tuple[str, ...] = ()
) -> Iterator[ConstrainedInput | FaultyInput]:
    """The rows as inputs; `prefix` and the number of a row are its place."""
    for number, row in enumerate(rows, 1):
        if isinstance(row, Fault):
            yield FaultyInput(row.location, row.detail)
            continue
        text, record, line = row
        place = f"{prefix}{line or number}" if prefix else ""
        yield with_constraints(row, place, fields) if record else ConstrainedInput(text, NO_CONSTRAINTS, place)


def with_constraints(row: SourceRow, place: str, fields: tuple[str, ...]) -> ConstrainedInput | FaultyInput:
    """The row with the fields of its record that constrain the output.

    A misspelt one is a fault. Other fields, such as the target, have no effect.
    """
    for key in row.record:
        if key not in (*fields, *FIELDS) and (match := misspelt_field(key)):
            return FaultyInput(place, f"found the field '{key}'. Did you mean '{match}'?", row.text[:SHOWN])
    try:
        own = {key: value for key, value in row.record.items() if key in FIELDS}
        return ConstrainedInput(row.text, parse_constraints(own, place) if own else NO_CONSTRAINTS, place)
    except DataError as error:
        return FaultyInput(place, str(error).removeprefix(f"{place}: "), row.text[:SHOWN])


@lru_cache(maxsize=1024)  # every row has the same fields
def misspelt_field(key: str) -> str | None:
    return nearest(key, FIELDS)


def usable(item: ConstrainedInput | FaultyInput) -> ConstrainedInput:
    """The input; a faulty one is an error, since every input needs an output."""
    if isinstance(item, FaultyInput):
        raise DataError(str(item))
    return item


# --- how a run reads


def reads_files(run: Run) -> bool:
    """Whether the inputs of a run are recordings or pictures."""
    return isinstance(run.task.example_format(run.config), MediaFormat)


def reads_tags(run: Run) -> bool:
    """Whether a source of the run is a sentence of words with tags."""
    return isinstance(run.task.example_format(run.config), TagFormat)


def check_reading(run: Run, reading: ReadingOptions) -> None:
    """Raise an error for settings that have no effect on text, and for a data.media that is no folder or archive."""
    for name, given in (("skip_unreadable", reading.skip_unreadable), ("media", reading.media is not None)):
        if given and not reads_files(run):
            raise ConfigError(f'data.{name} is for recordings and pictures; {run.folder} has task = "{run.task.name}"')
    if reading.media is not None:
        check_media_folder(reading.media, "data.media")


@lru_cache(maxsize=8)  # asked for every file, and every time would load the tokenizers
def number_of_texts(run: Run) -> int:
    """How many texts a source of the run has: two for a classifier of text pairs."""
    source = run.tokenizers()[0]
    return 2 if isinstance(source, TextPairTokenizer) and not source.context else 1


def source_options(run: Run, data: DataConfig, table: bool = False) -> ReadOptions:
    texts = number_of_texts(run)
    return ReadOptions(data.columns, data.header, texts=texts, lists=reads_tags(run), table=table)


def has_sentences(run: Run, path: Path) -> bool:
    """Whether a file of a tagger has its words on lines of their own, or sentences beside their tags."""
    reader = READERS.of(path)
    tabs = reader.table and reader.delimiter == "\t"
    return reads_tags(run) and (tabs or suffix_of(path) in CONLL_SUFFIXES or has_tagged_words(path))


def tagged_sentences(run: Run, path: Path, data: DataConfig) -> Iterator[SourceRow | Fault]:
    for item in run.task.example_format(run.config).read(data, str(path), False):
        if isinstance(item, Fault):
            yield item._replace(detail=f"{item.detail}; to tag plain sentences put one on each line of a .txt file")
        else:
            yield SourceRow(item.source, line=item.line)


def prompts(path: Path) -> Iterator[SourceRow | Fault]:
    """The prompts of a file: whole lines, tabs and commas included, or objects with "source" alone."""
    if READERS.of(path).delimiter:
        yield from map(SourceRow, read_lines(path))
        return
    for row in READERS.of(path).sources(path, ReadOptions()):
        other = None if isinstance(row, Fault) else next((key for key in row.record if key != "source"), None)
        if isinstance(row, Fault) or other is None:
            yield row
        else:
            yield Fault(f"{path}:{row.line}", "bad-json", f"found the field '{other}', expected \"source\" alone")


def warn_of_layout(inputs: Iterator[ConstrainedInput], run: Run, warn: Warn) -> Iterator[ConstrainedInput]:
    """The lines of plain text; warns of the first with a tab, and a tagger of many lines with single words."""
    tags, single = reads_tags(run), 0
    tabs = number_of_texts(run) > 1 or run.task.head_decoder is not None or len(paths_of(run.config.data.train)) > 1
    for number, item in enumerate(inputs, 1):
        if not tabs and "\t" in item.text:
            tabs = True
            warn(
                f"{item.place or f'input {number}'} has a tab and is read as one source, tab included; to read the "
                "first column alone add data.columns=1, or name the file .tsv"
            )
        single += tags and len(item.text.split()) == 1
        if single == number == MANY_WORDS:
            warn(
                "every line so far is a single word, and each is tagged alone; put a sentence on each line, or name "
                "the file .tsv and separate sentences by empty lines"
            )
        yield item
