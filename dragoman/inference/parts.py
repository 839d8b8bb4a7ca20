"""Inputs that a model does not read as a whole: long ones, and those with texts to copy that a search cannot force.

Such an input becomes parts. The model reads some of them; white space and texts to copy are written as they are.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.language_tags import split_tag
from dragoman.decoding.constraints.source import protected_spans
from dragoman.decoding.constraints.spec import ConstrainedInput, OutputConstraints
from dragoman.inference.long_inputs import InputTooLongError, LengthLimits, over_long, split_text
from dragoman.inference.prediction import Prediction


class Part(NamedTuple):
    """A piece of an input. The parts of an input join to its text."""

    text: str
    copied: bool  # written as it is, not read by the model


def has_letter(text: str) -> bool:
    """Whether there is anything to translate: numbers, signs and white space are the same in every language."""
    return any(map(str.isalpha, text))


def trimmed(text: str) -> list[Part]:
    """A text as a part, with the white space on either side as parts of their own."""
    begin, end = len(text) - len(text.lstrip()), len(text.rstrip())
    pieces = (Part(text[:begin], True), Part(text[begin:end], False), Part(text[end:], True))
    return [part for part in pieces if part.text] if begin < end else [Part(text, True)]


def parts_around(text: str, names: Sequence[str]) -> list[Part]:
    """The parts of a text between the texts to copy; a number takes the letters with it that touch it, as in B12."""
    parts: list[Part] = []
    end = 0
    for first, last in protected_spans(text, names):
        if text[first].isdigit():
            while first > end and text[first - 1].isalnum():
                first -= 1
            while last < len(text) and text[last].isalnum():
                last += 1
        if last > end:
            first = max(first, end)
            parts += [*between(text[end:first], end > 0, True), Part(text[first:last], True)]
            end = last
    return [*parts, *between(text[end:], end > 0, False)]


def between(text: str, left: bool, right: bool) -> list[Part]:
    """The parts of a text beside texts to copy: the model reads it if it has a letter.

    On a side that touches a text to copy, punctuation stays with it, as the brackets of ({name}) and the colon of
    {name}: do.
    """
    if not has_letter(text):
        return [Part(text, True)] if text else []
    begin, end = 0, len(text)
    while left and is_separator(text[begin]):
        begin += 1
    while right and is_separator(text[end - 1]):
        end -= 1
    pieces = [Part(text[:begin], True), *trimmed(text[begin:end]), Part(text[end:], True)]
    return [part for part in pieces if part.text]


def is_separator(char: str) -> bool:
    """Whether a character is punctuation, a sign or white space."""
    return unicodedata.category(char)[0] in "PSZ" or char.isspace()


class Planner(NamedTuple):
    """Decides how inputs are read."""

    tokenizer: SourceReader
    limits: LengthLimits
    constrainable: bool  # whether the search can force texts into an output

    def parts(self, one: ConstrainedInput, place: str, warn: Callable[[str], None]) -> list[Part] | None:
        """The parts of an input; None: the model reads it as a whole."""
        tag, text = split_tag(one.text, self.tokenizer.tags)
        if not text.strip():
            return None
        limits = self.limits._replace(tokens=self.limits.tokens - bool(tag))
        names = [name for name, _ in one.constraints.placeholders]
        others = replace(one.constraints, placeholders=())
        parts = [Part(text, False)]
        if names and not others:
            around = parts_around(text, names)
            if not self.constrainable or all(part.copied for part in around):
                parts = around
        problem, limit = next((found for part in parts if (found := self._problem(part, limits))[0]), ("", 0))
        if not problem:
            return None if parts == [Part(text, False)] else parts
        if others and replace(others, forbid=()):
            reason = "a text that is read in parts can have no prefix, terms, pattern or required phrases"
            raise InputTooLongError(place, text, limit, problem, reason)
        parts = [small for part in parts for small in self._split(part, limits)]
        warn(f"{place}: {problem}; read in {sum(not part.copied for part in parts)} parts")
        return parts

    def _problem(self, part: Part, limits: LengthLimits) -> tuple[str, int]:
        return ("", 0) if part.copied else over_long(part.text, self.tokenizer, limits)

    def _split(self, part: Part, limits: LengthLimits) -> list[Part]:
        if part.copied:
            return [part]
        texts = split_text(part.text, lambda text: not over_long(text, self.tokenizer, limits)[0])
        return [piece for text in texts for piece in trimmed(text)]


def constraints_of_part(constraints: OutputConstraints, part: str) -> OutputConstraints:
    """The constraints of a whole input that hold for one part: what is forbidden, and its own texts to copy."""
    counts = ((name, part.count(name)) for name, _ in constraints.placeholders)
    return OutputConstraints(
        forbid=constraints.forbid, placeholders=tuple((name, count) for name, count in counts if count)
    )


def join_parts(parts: Sequence[Part], predictions: Sequence[Prediction]) -> Prediction:
    """The predictions of the parts of an input as one; its score is the mean over all tokens."""
    outputs = iter(predictions)
    text = "".join(part.text if part.copied else next(outputs).text for part in parts)
    counts = [max(1, len(one.token_scores)) for one in predictions]
    weighted = (one.score * count for one, count in zip(predictions, counts, strict=True))
    joined = Prediction(
        text=text,
        score=math.fsum(weighted) / max(1, sum(counts)),
        tokens=tuple(token for one in predictions for token in one.tokens),
        token_scores=tuple(score for one in predictions for score in one.token_scores),
    )
    confidences = [one.confidence for one in predictions if one.confidence is not None]
    if not predictions or len(confidences) < len(predictions):
        return joined
    tokens = tuple(value for one in predictions for value in one.token_confidences)
    return replace(joined, confidence=math.prod(confidences), token_confidences=tokens)
