"""What a search gives: an output with its scores, and what sorts outputs anew."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from dragoman.inference.confidence import log_probability
from dragoman.scoring.calibration import PlattScale


@dataclass(frozen=True)
class Prediction:
    """One output; str() gives its text."""

    text: str
    score: float  # what outputs are ranked by: mean log-probability a token, or as the way of searching says
    tokens: tuple[str, ...]
    token_scores: tuple[float, ...]
    alternatives: tuple[Prediction, ...] = ()  # further outputs, best first
    confidence: float | None = None  # of a calibrated run: how often an output this sure is wholly right
    token_confidences: tuple[float, ...] = ()  # how often a token this sure is right, <eos> included

    def __str__(self) -> str:
        return self.text

    @property
    def probability(self) -> float:
        """How probable the whole output is, <eos> included."""
        return math.exp(sum(self.token_scores))

    def as_json(self, *, probability: bool = False) -> str:
        """One JSON object on one line, if asked for with the probability of every output."""
        return json.dumps(self.as_table(probability=probability), ensure_ascii=False)

    def as_table(self, *, probability: bool = False) -> dict[str, Any]:
        """Names and values, without what this prediction does not have."""
        table = {field.name: getattr(self, field.name) for field in fields(self)}
        if probability:
            table["probability"] = self.probability
        if self.confidence is None:
            del table["confidence"], table["token_confidences"]
        if not self.alternatives:
            del table["alternatives"]
        else:
            table["alternatives"] = [one.as_table(probability=probability) for one in self.alternatives]
        return table


def confident(prediction: Prediction, tokens: tuple[float, ...], scale: PlattScale) -> Prediction:
    """The prediction with the confidences of its tokens and its own."""
    return replace(prediction, confidence=scale(log_probability(tokens)), token_confidences=tokens)


NOTHING = Prediction("", 0.0, (), ())


class Rerank(Protocol):
    """Sorts outputs anew (companions.Reranker)."""

    def ranked(self, sources: Sequence[str], predictions: Sequence[Prediction], n_best: int) -> list[Prediction]:
        """The predictions of the sources, the best `n_best` of each and its alternatives."""
