"""Inputs that a model does not read as a whole: long ones, and those with tags and other texts to copy.

Such an input becomes parts. The model reads some of them; white space and texts to copy are written as they are. A
single line of 100,000 characters must neither stop the other lines of a file nor take all memory, and its output is
never empty without a reason.
"""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dragoman.base import DataError
from dragoman.data import SourceReader, unbroken_spans
from dragoman.data.tokenizers import split_tag
from dragoman.decoding.constraints import ConstrainedInput
from dragoman.inference.prediction import Prediction
from dragoman.inference.segments import Parsing, Part, join_texts, parts_of_text
from dragoman.runs.tasks import Config, encoder_of, length_limit

SENTENCE_END = re.compile(r"[.!?…]['\")\]»”]*\s+|[。！？]\s*")
MAX_TOKENS_PER_CHARACTER = 4  # bytes of UTF-8: a shorter text cannot be too long
LABEL_TOKENS = 4096  # a label may depend on any part of a text, so texts are read whole up to so many tokens
OnWarning = Callable[[str], None]  # gets a message
Excess = tuple[str, int]  # what is wrong with a text that is too long, and the limit


class LengthLimits(NamedTuple):
    """What the training data allowed: longer inputs are unlike anything that the model has learnt from."""

    tokens: int
    tokens_setting: str
    characters: int

    @classmethod
    def of(cls, config: Config) -> LengthLimits:
        """The limits of a run: those of its data and of its encoder."""
        limits = [(config.data.max_length, "data.max_length")]
        setting, maximum = length_limit(encoder_of(config))
        if maximum is not None:
            limits.append((maximum - 1, f"model.encoder.{setting}"))  # <eos> takes one
        return cls(*min(limits), config.data.max_characters)

    def excess(self, text: str, tokenizer: SourceReader | None = None) -> Excess | None:
        """What is wrong with a text that is longer than the limits; without a tokenizer only its characters count."""
        if len(text) > self.characters:
            expected = f"expected at most data.max_characters = {self.characters:,}"
            return f"found {len(text):,} characters, {expected}", self.characters
        if tokenizer is None or len(text) <= self.tokens // MAX_TOKENS_PER_CHARACTER:
            return None
        if (count := len(tokenizer.encode(text))) <= self.tokens:
            return None
        return f"found {count:,} tokens, expected at most {self.tokens_setting} = {self.tokens:,}", self.tokens


class InputTooLongError(DataError):
    """An input that is longer than the run can read and that cannot be read in parts."""

    def __init__(self, place: str, text: str, excess: Excess, reason: str) -> None:
        problem, self.limit = excess
        self.text = text
        self.reason = f"{problem}; {reason}"  # without the place
        super().__init__(f"{place}: {self.reason}")


def split_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """A text cut after sentences, at spaces, or else anywhere, until each part fits: the parts join to the text."""
    if len(text) <= 1 or fits(text):
        return [text]
    cut = cut_near_middle(text)
    return [*split_text(text[:cut], fits), *split_text(text[cut:], fits)]


def cut_near_middle(text: str) -> int:
    """Where to cut a text in two: the place nearest to its middle, in the middle half, of the best kind there is."""
    middle, low, high = len(text) // 2, len(text) // 4, len(text) - len(text) // 4
    spans = unbroken_spans(text)

    def between_spans(ends: Iterable[int]) -> list[int]:
        return [end for end in ends if not any(first < end < last for first, last in spans)]

    ends = between_spans(match.end() for match in SENTENCE_END.finditer(text, low, high))
    ends = ends or between_spans(match.end() for match in re.compile(r"\s+").finditer(text, low, high))
    ends = ends or between_spans(range(middle, len(text)))[:1]
    return min(ends, key=lambda end: abs(end - middle), default=middle) or 1


def parts_of(
    item: ConstrainedInput,
    place: str,
    warn: Callable[[str], None],
    tokenizer: SourceReader,
    limits: LengthLimits,
    parsing: Parsing,
) -> list[Part] | None:
    """The parts of an input; None: the model reads it as a whole."""
    tag, text = split_tag(item.text, tokenizer.tags)
    if not text.strip():
        return None
    limits = limits._replace(tokens=limits.tokens - bool(tag))
    parts = parts_of_text(text, parsing)
    problems = (limits.excess(part.text, tokenizer) for part in parts if not part.copied)
    excess = next(filter(None, problems), None)
    if excess is None:
        return None if parts == [Part(text, False)] else parts
    if item.constraints and replace(item.constraints, forbid=()):
        reason = "a text that is read in parts can have no prefix, terms, pattern or required phrases"
        raise InputTooLongError(place, text, excess, reason)

    def fits(text: str) -> bool:
        pieces = parts_of_text(text, parsing)
        return all(piece.copied or limits.excess(piece.text, tokenizer) is None for piece in pieces)

    small: list[Part] = []
    for part in parts:
        if part.copied or limits.excess(part.text, tokenizer) is None:
            small.append(part)
            continue
        for piece in split_text(part.text if part.segment is None else part.segment.raw, fits):
            small += [inner for stripped in stripped_parts(piece) for inner in read_parts(stripped, parsing)]
    warn(f"{place}: {excess[0]}; read in {sum(not part.copied for part in small)} parts")
    return small


def stripped_parts(text: str) -> list[Part]:
    """A text to read, and the white space at its sides."""
    inner = text.strip()
    if not inner:
        return [Part(text, True)] if text else []
    begin = text.index(inner)
    pieces = (Part(text[:begin], True), Part(inner, False), Part(text[begin + len(inner) :], True))
    return [part for part in pieces if part.text]


def read_parts(part: Part, parsing: Parsing) -> list[Part]:
    return [part] if part.copied else parts_of_text(part.text, parsing)


def join_parts(parts: Sequence[Part], predictions: Sequence[Prediction]) -> Prediction:
    """The predictions of the parts of an input as one; its score is the mean over all tokens."""

    def text_of(outputs: Sequence[Prediction]) -> str:
        texts = iter(outputs)
        return join_texts([part.text if part.copied else next(texts).text for part in parts])

    if len(predictions) == 1:
        (own,) = predictions
        others = tuple(replace(other, text=text_of([other])) for other in own.alternatives)
        return replace(own, text=text_of([own]), alternatives=others)
    counts = [max(1, len(output.token_scores)) for output in predictions]
    weighted = (output.score * count for output, count in zip(predictions, counts, strict=True))
    joined = Prediction(
        text=text_of(predictions),
        score=math.fsum(weighted) / max(1, sum(counts)),
        tokens=tuple(token for output in predictions for token in output.tokens),
        token_scores=tuple(score for output in predictions for score in output.token_scores),
    )
    confidences = [output.confidence for output in predictions if output.confidence is not None]
    if not predictions or len(confidences) < len(predictions):
        return joined
    tokens = tuple(value for output in predictions for value in output.token_confidences)
    return replace(joined, confidence=math.prod(confidences), token_confidences=tokens)


def warn_caller(handler: OnWarning | None, message: str, category: type[Warning] = UserWarning) -> None:
    """Warn the caller: by its own function, or as a Python warning."""
    if handler is not None:
        handler(message)
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("dragoman."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)  # the warning names the line of the caller, not one of ours
