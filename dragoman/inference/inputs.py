"""What callers give beside texts: how a stream reads and reports, the tags of sources, constraints on outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from dragoman.base import DragomanError
from dragoman.data import Example, Fault, TranslationMemory
from dragoman.data.tokenizers import check_tag, ensure_tag
from dragoman.decoding import (
    Average,
    DecodingOptions,
    EngineName,
    Method,
    Phrases,
    Precision,
    RerankModel,
    check_at_least,
)
from dragoman.decoding.constraints import (
    FIELDS,
    ConstrainedInput,
    OutputConstraints,
    Terminology,
    constraints_for_inputs,
    parse_constraints,
)
from dragoman.inference.loaded import LoadedRun
from dragoman.inference.long_inputs import InputTooLongError, OnWarning, warn_caller

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


def constrained_inputs(inputs: Sequence[ConstrainedInput], options: DecodingOptions) -> list[ConstrainedInput]:
    """The inputs with the constraints of the options, but for those that an input has of its own."""
    constraints = constraints_for_inputs(len(inputs), **{name: getattr(options, name) for name in FIELDS})
    return [item.with_defaults(shared) for item, shared in zip(inputs, constraints, strict=True)]


def common_constraints(options: DecodingOptions) -> OutputConstraints:
    return parse_constraints({name: getattr(options, name) for name in FIELDS}, "options")


def tagged_sources(examples: Sequence[Example], tag: str | None, tags: tuple[str, ...]) -> list[str]:
    """The sources of examples with their tags; an example's own tag goes before `tag`."""
    for name in {tag, *(example.tag or None for example in examples)} - {None}:
        check_tag(str(name), tags)
    return [ensure_tag(example.model_input, tag, tags, example.location) for example in examples]


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
    weights: tuple[float, ...]
    prefix: str | Sequence[str | None] | None
    forbid: Phrases
    require: Phrases
    allow: Phrases
    pattern: str | Sequence[str | None] | None
    constrain: Mapping[str, str] | Sequence[Mapping[str, str] | None] | None
    terminology: str | Path | Terminology | None
    placeholders: bool
    split_long: bool | None
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
