"""Models of a few lines, in place of a run: what documents become is then known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from dragoman.documents.base import Document, UnitTranslation
from dragoman.documents.translation import finished, translate_blocks, translate_units
from dragoman.inference.align.alignments import WordAlignment
from dragoman.inference.numbers import Localise
from dragoman.inference.prediction import Prediction

T = TypeVar("T")


class ChangingEngine:
    """Changes every text by a function and aligns nothing; `read` has all texts."""

    has_probabilities = True

    def __init__(self, change: Callable[[str], str] = str, scores: Sequence[float] = (-0.1,), longest: int = 10**9):
        self.change, self.scores, self.longest = change, tuple(scores), longest
        self.read: list[str] = []

    def fits(self, text: str) -> bool:
        return len(text) <= self.longest

    async def predict(self, texts: Sequence[str]) -> Sequence[Prediction | Exception]:
        self.read += texts
        return [Prediction(self.change(text), 0.0, (), self.scores) for text in texts]

    async def align(self, pairs: Sequence[tuple[str, str]]) -> Sequence[WordAlignment | None]:
        return [None] * len(pairs)

    async def prepare(self, work: Callable[[], T], texts: Sequence[str] | None) -> T:
        return work()

    def outputs(self, document: Document, localise: Localise | None = None) -> list[UnitTranslation | Exception]:
        """What becomes of each unit."""
        return finished(translate_blocks([unit.block for unit in document.units], self, localise))


class SameOrderEngine(ChangingEngine):
    """Aligns the words one by one: the function keeps their number."""

    async def align(self, pairs: Sequence[tuple[str, str]]) -> Sequence[WordAlignment | None]:
        return [_same_order(*pair) for pair in pairs]


def translated(document: Document, change: Callable[[str], str] = str, everything: bool = False) -> bytes:
    """The document with every unit changed by a function that keeps the number of words."""
    translation = finished(translate_units(document, SameOrderEngine(change), everything=everything))
    assert not translation.faults
    return translation.data


def _same_order(source: str, target: str) -> WordAlignment:
    words, others = tuple(source.split()), tuple(target.split())
    assert len(words) == len(others)
    return WordAlignment(words, others, frozenset((one, one) for one in range(len(words))), torch.eye(len(words)))
