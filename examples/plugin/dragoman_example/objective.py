"""Focal loss (Lin et al. 2017): tokens that the model predicts well already count less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import dragoman
from dragoman.extend import (
    Loss,
    Objective,
    ObjectiveConfig,
    ObjectiveEntry,
    Range,
    setting,
)


@dataclass(frozen=True)
class FocalConfig(ObjectiveConfig):
    """Focal loss."""

    kind: ClassVar[str] = "focal"
    includes: ClassVar[str] = "the focal weights of tokens"
    gamma: Annotated[float, Range(0.0, 10.0)] = setting(2.0, help="exponent of 1 − p; 0 is maximum likelihood")


class Focal(Objective):
    """−Σ (1 − p)^γ log p. A sum over tokens, not a mean: the trainer divides by the tokens of the whole step."""

    def loss(self, model: Any, batch: Any) -> Loss:
        scores = model.score(batch)  # teacher forcing, zero on padding
        weights = (1 - scores.log_probabilities.exp()) ** self.config.gamma
        return Loss(-(weights * scores.log_probabilities).sum(), scores.mask.sum())


dragoman.register(ObjectiveEntry(FocalConfig, Focal))
