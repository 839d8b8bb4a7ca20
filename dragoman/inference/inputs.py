"""From the texts and files of a caller to the token ids or features that a model reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from dragoman.data.examples import Example, Fault
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.tokenizers.language_tags import check_tag, ensure_tag, split_tag
from dragoman.data.tokenizers.pair_codec import PairCodec
from dragoman.decoding.constraints.source import Terminology, add_source_constraints
from dragoman.decoding.constraints.spec import (
    FIELDS,
    ConstrainedInput,
    OutputConstraints,
    constraints_for_inputs,
    parse_constraints,
)
from dragoman.decoding.options import DecodingOptions
from dragoman.errors import ConfigError, DataError
from dragoman.inference.evaluation import read_files
from dragoman.inference.loaded import LoadedRun
from dragoman.inference.long_inputs import InputTooLongError
from dragoman.tasks.base import encoder_of, length_limit

MEDIA_WINDOW = 1024  # of recordings and pictures, which need more memory
WINDOW = 4096  # inputs read ahead, so that batches hold like lengths; bounds the memory of a stream
Nodes = list[dict[str, Any]]


@dataclass(frozen=True)
class StreamOptions:
    """How a stream reads its inputs and what it reports."""

    window: int = WINDOW  # inputs read ahead; 1 answers each input before it reads the next
    progress: Callable[[int], None] | None = None  # gets the number of inputs just finished
    on_trace: Callable[[str, Nodes], None] | None = None  # gets each input and all continuations the search ranked
    on_unreadable: Callable[[Fault], None] | None = None  # gets files that cannot be read; None: they are errors
    on_refused: Callable[[int, InputTooLongError], None] | None = None  # gets inputs too long to read; None: errors
    on_warning: Callable[[str], None] | None = None  # gets a line about some inputs; None: warnings.warn
    # Gets the number of each input with characters or words that training did not have, and these; None: one warning.
    on_unknown: Callable[[int, list[str]], None] | None = None
    input_name: Callable[[int], str] = "input {}".format  # names an input in errors, by its number from 1

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError(f"window: found {self.window}, expected at least 1")

    def done(self, count: int) -> None:
        if self.progress is not None:
            self.progress(count)


def constrained_inputs(texts: list[str], options: DecodingOptions) -> list[ConstrainedInput]:
    """The texts, each with the constraints that the options have for it."""
    others = {name: getattr(options, name) for name in FIELDS if name not in ("prefix", "pattern")}
    constraints = constraints_for_inputs(len(texts), options.prefix, options.pattern, **others)
    return [ConstrainedInput(text, own) for text, own in zip(texts, constraints, strict=True)]


def common_constraints(options: DecodingOptions) -> OutputConstraints:
    """The constraints that the options have for every output."""
    return parse_constraints({name: getattr(options, name) for name in FIELDS}, "options")


def model_inputs(
    texts: Iterable[str | ConstrainedInput], options: DecodingOptions, tags: tuple[str, ...]
) -> Iterator[ConstrainedInput]:
    """The texts as the model reads them, each with all constraints on its output."""
    if options.tag is not None:
        check_tag(options.tag, tags)
    terms = options.terminology
    terms = Terminology.read(terms) if isinstance(terms, str | Path) else terms

    common = cache(partial(common_constraints, options))

    def constrained(text: str, constraints: OutputConstraints) -> ConstrainedInput:
        source = split_tag(text, tags)[1]
        return ConstrainedInput(text, add_source_constraints(constraints, source, terms, options.placeholders))

    items = (one if isinstance(one, ConstrainedInput) else ConstrainedInput(one, common()) for one in texts)
    return (
        constrained(text, one.constraints)
        for number, one in enumerate(items, 1)
        for text in with_tags([one.text], options.tag, tags, number)
    )


def with_tags(texts: Iterable[str], tag: str | None, tags: tuple[str, ...], first: int = 1) -> Iterator[str]:
    """The texts with their tags, for a run that knows `tags`; empty texts stay as they are."""
    for number, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise TypeError(f"found {text!r} among the texts, expected strings")
        yield ensure_tag(text, tag, tags, f"input {number}") if text.strip() else text


def tagged_sources(examples: Sequence[Example], tag: str | None, tags: tuple[str, ...]) -> list[str]:
    """The sources of examples with their tags; an example's own tag goes before `tag`."""
    for one in {tag, *(example.tag or None for example in examples)} - {None}:
        check_tag(str(one), tags)
    return [ensure_tag(example.model_input, tag, tags, example.location) for example in examples]


def encode_inputs(
    run: LoadedRun,
    codec: PairCodec,
    inputs: list[ConstrainedInput],
    indices: list[int],
    first: int,
    stream: StreamOptions,
) -> tuple[list[Any], list[int]]:
    """What the model reads of the inputs at these indices, and the indices of those that can be read."""
    texts = [inputs[index].text for index in indices]
    if isinstance(run.source_tokenizer, FeatureExtractor):
        readable: list[tuple[Any, int]] = []
        for features, index in zip(run.source_tokenizer.encode_or_fault(texts), indices, strict=True):
            name = stream.input_name(first + index)
            if not isinstance(features, Fault):
                readable.append((features, index))
            elif stream.on_unreadable is None:
                raise DataError(f"{name}: {features}; leave such inputs out with --skip-unreadable")
            else:
                stream.on_unreadable(Fault(name, features.kind, str(features)))
                stream.done(1)
        sources, indices = [source for source, _ in readable], [index for _, index in readable]
    else:
        sources = codec.encode_sources(texts)
    setting, maximum = length_limit(encoder_of(run.config))
    for index, tokens in zip(indices, sources, strict=True):
        if maximum is not None and len(tokens) >= maximum:
            raise InputTooLongError(
                stream.input_name(first + index),
                inputs[index].text,
                maximum - 1,
                f"found {len(tokens) + 1} tokens, <eos> included",
                f"expected at most the {maximum} of model.encoder.{setting}",
            )
    return sources, indices


def readable_examples(
    run: LoadedRun, examples: list[Example], skip: bool, stream: StreamOptions
) -> tuple[list[Example], list[Fault]]:
    """The examples whose files can be read, which are read once; other files are errors, or with `skip` reported."""
    if not isinstance(run.source_tokenizer, FeatureExtractor):
        return examples, []
    readable, faults = read_files(run.source_tokenizer, examples, run)
    if faults and not skip:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise DataError(f"{faults[0]}{more}; leave such examples out with --skip-unreadable (skip_unreadable=True)")
    if stream.on_unreadable is not None:
        for fault in faults:
            stream.on_unreadable(fault)
    if not readable:
        raise DataError(f"nothing to evaluate: none of {len(faults)} files could be read")
    return readable, faults
