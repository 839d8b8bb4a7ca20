"""What callers give beside texts: how a stream reads and reports, the tags of sources, constraints on outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from dragoman.data.examples import Example, Fault
from dragoman.data.tokenizers.language_tags import check_tag, ensure_tag
from dragoman.decoding.constraints.spec import (
    FIELDS,
    ConstrainedInput,
    OutputConstraints,
    constraints_for_inputs,
    parse_constraints,
)
from dragoman.decoding.options import DecodingOptions
from dragoman.errors import ConfigError, DragomanError
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
        if self.window < 1:
            raise ConfigError(f"window: found {self.window}, expected at least 1")

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
    """The texts, each with the constraints that the options have for it."""
    others = {name: getattr(options, name) for name in FIELDS if name not in ("prefix", "pattern")}
    constraints = constraints_for_inputs(len(texts), options.prefix, options.pattern, **others)
    return [ConstrainedInput(text, own) for text, own in zip(texts, constraints, strict=True)]


def common_constraints(options: DecodingOptions) -> OutputConstraints:
    """The constraints that the options have for every output."""
    return parse_constraints({name: getattr(options, name) for name in FIELDS}, "options")


def with_tags(texts: Iterable[str], tag: str | None, tags: tuple[str, ...]) -> Iterator[str]:
    """The texts with their tags, for a run that knows `tags`; empty texts stay as they are."""
    for number, text in enumerate(texts, 1):
        yield ensure_tag(text, tag, tags, f"input {number}") if text.strip() else text


def tagged_sources(examples: Sequence[Example], tag: str | None, tags: tuple[str, ...]) -> list[str]:
    """The sources of examples with their tags; an example's own tag goes before `tag`."""
    for name in {tag, *(example.tag or None for example in examples)} - {None}:
        check_tag(str(name), tags)
    return [ensure_tag(example.model_input, tag, tags, example.location) for example in examples]
