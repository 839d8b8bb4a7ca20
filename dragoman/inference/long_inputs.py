"""Inputs longer than the training data: split into parts that the model can read, or refused, one by one.

A single line of 100,000 characters must neither stop the other lines of a file nor take all memory, and its output is
never empty without a reason.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from typing import NamedTuple

from dragoman.data.source_reader import SourceReader
from dragoman.errors import DataError
from dragoman.tasks.base import Config, encoder_of, length_limit

SENTENCE_END = re.compile(r"[.!?…]['\")\]»”]*\s+|[。！？]\s*")
MAX_TOKENS_PER_CHARACTER = 4  # bytes of UTF-8: a shorter text cannot be too long
OnWarning = Callable[[str], None]  # gets a message

LABEL_TOKENS = 4096  # a label may depend on any part of a text, so texts are read whole up to so many tokens


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


class InputTooLongError(DataError):
    """An input that is longer than the run can read and that cannot be read in parts."""

    def __init__(self, place: str, text: str, limit: int, problem: str, reason: str) -> None:
        self.text, self.limit = text, limit
        self.reason = f"{problem}; {reason}"  # without the place
        super().__init__(f"{place}: {self.reason}")


def over_many_characters(text: str, limits: LengthLimits) -> tuple[str, int]:
    """What is wrong with a text of too many characters, and the limit; ("", 0) if nothing is."""
    if len(text) <= limits.characters:
        return "", 0
    expected = f"expected at most data.max_characters = {limits.characters:,}"
    return f"found {len(text):,} characters, {expected}", limits.characters


def over_long(text: str, tokenizer: SourceReader, limits: LengthLimits) -> tuple[str, int]:
    """What is wrong with a text that is longer than the limits, and the limit; ("", 0) if nothing is."""
    problem = over_many_characters(text, limits)
    if problem[0] or len(text) <= limits.tokens // MAX_TOKENS_PER_CHARACTER:
        return problem
    if (count := len(tokenizer.encode(text))) <= limits.tokens:
        return "", 0
    return f"found {count:,} tokens, expected at most {limits.tokens_setting} = {limits.tokens:,}", limits.tokens


def split_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """A text cut after sentences, at spaces, or else anywhere, until each part fits: the parts join to the text."""
    if len(text) <= 1 or fits(text):
        return [text]
    cut = cut_near_middle(text)
    return [*split_text(text[:cut], fits), *split_text(text[cut:], fits)]


def cut_near_middle(text: str) -> int:
    """Where to cut a text in two: the place nearest to its middle, in the middle half, of the best kind there is."""
    middle, low, high = len(text) // 2, len(text) // 4, len(text) - len(text) // 4
    ends = [match.end() for match in SENTENCE_END.finditer(text, low, high)]
    ends = ends or [match.end() for match in re.compile(r"\s+").finditer(text, low, high)]
    return min(ends, key=lambda end: abs(end - middle), default=middle) or 1


def warn_caller(handler: OnWarning | None, message: str, category: type[Warning] = UserWarning) -> None:
    """Warn the caller: by its own function, or as a Python warning."""
    if handler is not None:
        handler(message)
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("dragoman."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)  # the warning names the line of the caller, not one of ours
