"""Maximum likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dragoman.models.contracts import Loss
from dragoman.training.objectives.base import Objective, ObjectiveConfig


@dataclass(frozen=True)
class LikelihoodConfig(ObjectiveConfig):
    """Maximum likelihood: the negative log-probability of the reference, token by token."""

    kind: ClassVar[str] = "likelihood"


class Likelihood(Objective):
    """The model's own loss, label smoothing and scheduled sampling included."""

    def loss(self, model: Any, batch: Any) -> Loss:
        loss: Loss = model(batch)
        return loss
