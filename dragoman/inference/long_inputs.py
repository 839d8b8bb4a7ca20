"""Inputs longer than the training data: split into parts that the model can read, or left out, one by one.

A single line of 100,000 characters must neither stop the other lines of a file nor take all memory.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dragoman.data.tokenizers.base import UNK, Tokenizer
from dragoman.inference.prediction import Prediction
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


def over_long(text: str, limits: LengthLimits) -> str:
    """Why a text cannot be an input at all; empty if it can."""
    if len(text) <= limits.characters:
        return ""
    return f"found {len(text):,} characters, expected at most data.max_characters = {limits.characters:,}"


def split_text(text: str, tokenizer: Tokenizer, limit: int) -> list[str]:
    """Parts of a text of at most `limit` tokens each, cut after sentences, at spaces, or else anywhere."""
    if len(text) <= 1 or len(tokenizer.encode_batch([text])[0]) <= limit:
        return [text]
    cut = cut_near_middle(text)
    parts = (part.strip() for part in (text[:cut], text[cut:]))
    return [small for part in parts if part for small in split_text(part, tokenizer, limit)]


def cut_near_middle(text: str) -> int:
    """Where to cut a text in two: the place nearest to its middle, in the middle half, of the best kind there is."""
    middle, low, high = len(text) // 2, len(text) // 4, len(text) - len(text) // 4
    ends = [match.end() for match in SENTENCE_END.finditer(text, low, high)]
    ends = ends or [match.end() for match in re.compile(r"\s+").finditer(text, low, high)]
    return min(ends, key=lambda end: abs(end - middle), default=middle) or 1


def join_predictions(parts: Sequence[Prediction], spaces: bool) -> Prediction:
    """The predictions of the parts of a text as one; its score is the mean over all tokens."""
    texts = [part.text for part in parts if part.text]
    counts = [max(1, len(part.token_scores)) for part in parts]
    joined = Prediction(
        text=(" " if spaces else "").join(texts),
        score=sum(part.score * count for part, count in zip(parts, counts, strict=True)) / max(1, sum(counts)),
        tokens=tuple(token for part in parts for token in part.tokens),
        token_scores=tuple(score for part in parts for score in part.token_scores),
    )
    if parts and all(part.confidence is not None for part in parts):
        confidences = tuple(one for part in parts for one in part.token_confidences)
        product = 1.0
        for part in parts:
            product *= part.confidence or 0.0
        joined = replace(joined, confidence=product, token_confidences=confidences)
    return joined


def warn_caller(handler: OnWarning | None, message: str) -> None:
    """Warn the caller: by its own function, or as a Python warning."""
    if handler is None:
        warnings.warn(message, stacklevel=2)
    else:
        handler(message)


def unknown_surfaces(text: str, tokens: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """The characters or words of a text that the tokenizer reads as <unk>."""
    if UNK not in tokens:
        return []
    spans = tokenizer.spans(text)
    return [text[slice(*span)] for span, token in zip(spans, tokens, strict=True) if token == UNK]
