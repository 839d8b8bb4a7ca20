"""The scores of one validation, and the interface of validators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.scoring.registry import metrics_by_name


@dataclass(frozen=True)
class ValidationResult:
    """Scores of the model at one step."""

    scores: dict[str, float]
    sample: tuple[str, str] | None = None  # an input and the model's output

    def line(self) -> str:
        """The scores as one line of text."""
        metrics = metrics_by_name()
        return "  ".join(f"{name} {metrics[name].format(value)}" for name, value in self.scores.items())


class Validator(Protocol):
    """Scores a model on the validation data."""

    def measure(self, model: Any, interrupted: Callable[[], bool] = ...) -> ValidationResult | None:
        """All scores of a model; None if `interrupted` became true on the way."""
