"""What callers give beside texts: how a stream reads and reports, the tags of sources, constraints on outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict

from dragoman.data.config import DataConfig
from dragoman.data.examples import Example, Fault
from dragoman.data.formats.labels import TagFormat
from dragoman.data.readers.base import ReadOptions, SourceRow
from dragoman.data.tokenizers.base import TextPairTokenizer
from dragoman.data.tokenizers.language_tags import check_tag, ensure_tag
from dragoman.data.translation_memory import TranslationMemory
from dragoman.decoding.config import Average
from dragoman.decoding.constraints.source import Terminology
from dragoman.decoding.constraints.spec import (
    FIELDS,
    ConstrainedInput,
    OutputConstraints,
    constraints_for_inputs,
    parse_constraints,
)
from dragoman.decoding.method import Method
from dragoman.decoding.options import DecodingOptions, EngineName, Phrases, Precision, RerankModel, check_at_least
from dragoman.errors import DataError, DragomanError, nearest
from dragoman.inference.loaded import LoadedRun
from dragoman.inference.long_inputs import InputTooLongError, OnWarning, warn_caller
from dragoman.runs import Run

MEDIA_WINDOW = 1024  # of recordings and pictures, which need more memory
WINDOW = 4096  # inputs read ahead, so that batches hold like lengths; bounds the memory of a stream
Nodes = list[dict[str, Any]]
Warn = Callable[[str], None]
OnUnknown = Callable[[int, list[str]], None]


@dataclass(frozen=True)
class StreamOptions:
    """How a stream reads its inputs and what it reports. Inputs are counted from 1."""

    window: int = WINDOW  # inputs read ahead; 1 answers each input before it reads the next
    progress: Callable[[int], None] | None = None  # gets the number of inputs just finished
    on_trace: Callable[[str, Nodes], None] | None = None  # gets each input and all continuations the search ranked
    on_unreadable: Callable[[Fault], None] | None = None  # gets files that cannot be read; None: they are errors
    on_refused: Callable[[int, InputTooLongError], None] | None = None  # gets inputs too long to read; None: errors
    # Gets the number of each input that fails for any reason, and its error; the others go on. None: errors are raised.
    on_failed: Callable[[int, DragomanError], None] | None = None
    on_warning: OnWarning | None = None  # gets a line about some inputs; None: warnings.warn
    # Gets the number of each input with characters or words that training did not have, and these; None: one warning.
    on_unknown: OnUnknown | None = None
    input_name: Callable[[int], str] = "input {}".format  # names an input in errors, by its number

    def __post_init__(self) -> None:
        check_at_least(1, window=self.window)

    def done(self, count: int) -> None:
        if self.progress is not None:
            self.progress(count)

    def warn(self, message: str) -> None:
        warn_caller(self.on_warning, message)


class StreamKeywords(TypedDict, total=False):
    """The fields of `StreamOptions` as keywords of a call."""

    window: int
    progress: Callable[[int], None] | None
    on_trace: Callable[[str, Nodes], None] | None
    on_unreadable: Callable[[Fault], None] | None
    on_refused: Callable[[int, InputTooLongError], None] | None
    on_failed: Callable[[int, DragomanError], None] | None
    on_warning: OnWarning | None
    on_unknown: OnUnknown | None
    input_name: Callable[[int], str]


def constrained_inputs(texts: list[str], options: DecodingOptions) -> list[ConstrainedInput]:
    constraints = constraints_for_inputs(len(texts), **{name: getattr(options, name) for name in FIELDS})
    return [ConstrainedInput(text, own) for text, own in zip(texts, constraints, strict=True)]


def common_constraints(options: DecodingOptions) -> OutputConstraints:
    return parse_constraints({name: getattr(options, name) for name in FIELDS}, "options")


def tagged_sources(examples: Sequence[Example], tag: str | None, tags: tuple[str, ...]) -> list[str]:
    """The sources of examples with their tags; an example's own tag goes before `tag`."""
    for name in {tag, *(example.tag or None for example in examples)} - {None}:
        check_tag(str(name), tags)
    return [ensure_tag(example.model_input, tag, tags, example.location) for example in examples]


# --- The sources of a file of inputs, read as a run reads its own data; other columns are left out


def reads_tags(run: Run) -> bool:
    """Whether a source of the run is a sentence of words with tags."""
    return isinstance(run.task.example_format(run.config), TagFormat)


@lru_cache(maxsize=1)  # a command asks several times, and every time would load the tokenizers
def number_of_texts(run: Run) -> int:
    """How many texts a source of the run has: two for a classifier of text pairs."""
    source = run.tokenizers()[0]
    return 2 if isinstance(source, TextPairTokenizer) and not source.context else 1


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


class DecodingKeywords(TypedDict, total=False):
    """The fields of `DecodingOptions`."""

    beam: int | None
    length_penalty: float | None
    normalisation: str | None
    coverage_penalty: float | None
    stop: str | None
    num_complete: int | None
    min_length: int | None
    max_length: int | None
    no_repeat_ngram: int | None
    beam_groups: int | None
    diversity_penalty: float | None
    n_best: int
    method: Method | None
    rerank: RerankModel | Sequence[RerankModel]
    ensemble: Sequence[str | Path | LoadedRun]
    average: Average
    prefix: str | Sequence[str | None] | None
    forbid: Phrases
    require: Phrases
    allow: Phrases
    pattern: str | Sequence[str | None] | None
    constrain: Mapping[str, str] | Sequence[Mapping[str, str] | None] | None
    terminology: str | Path | Terminology | None
    placeholders: bool
    min_confidence: float | None
    memory: str | Path | TranslationMemory | None
    min_match: float
    tag: str | None
    scores: bool
    batch_size: int
    engine: EngineName
    precision: Precision


class SearchKeywords(DecodingKeywords, StreamKeywords, total=False):
    """The fields of `DecodingOptions` and `StreamOptions`."""


class EvaluationKeywords(SearchKeywords, total=False):
    """The fields of `DecodingOptions`, `EvaluationOptions` and `StreamOptions`."""

    metrics: str | Sequence[str]
    intervals: bool
    draws: int
    draws_seed: int
    skip_unreadable: bool
