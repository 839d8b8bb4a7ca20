"""An output of a search with its scores."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, replace
from typing import Any

from dragoman.inference.confidence import log_probability
from dragoman.scoring.calibration import PlattScale


@dataclass(frozen=True)
class Prediction:
    """One output; str() gives its text."""

    text: str
    score: float  # outputs are ranked by it: the normalised log-probability, or what the decoding method defines
    tokens: tuple[str, ...]
    token_scores: tuple[float, ...]
    alternatives: tuple[Prediction, ...] = ()  # further outputs, best first
    confidence: float | None = None  # of a calibrated run: the probability that the whole output is the reference
    token_confidences: tuple[float, ...] = ()  # probability that each token is right, <eos> included

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        more = f", {len(self.alternatives)} alternatives" if self.alternatives else ""
        sure = "" if self.confidence is None else f", confidence={self.confidence:.3f}"
        return f"Prediction({self.text!r}, score={self.score:.4f}{sure}{more})"

    @property
    def probability(self) -> float:
        """The probability of the whole output, <eos> included."""
        return math.exp(sum(self.token_scores))

    def as_json(self, *, probability: bool = False) -> str:
        """One JSON object on one line, with the probability of every output if `probability`."""
        return json.dumps(self.as_table(probability=probability), ensure_ascii=False)

    def as_table(self, *, probability: bool = False) -> dict[str, Any]:
        """A dictionary of the fields that this prediction has."""
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


def with_confidences(prediction: Prediction, tokens: tuple[float, ...], scale: PlattScale) -> Prediction:
    """The prediction with the confidences of its tokens and its own."""
    return replace(prediction, confidence=scale(log_probability(tokens)), token_confidences=tokens)


NO_PREDICTION = Prediction("", 0.0, (), ())  # of an empty or unreadable input
