"""The scores of one validation, and the interface of validators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class ValidationResult:
    """Scores of the model at one step."""

    scores: dict[str, float]
    sample: tuple[str, str] | None = None  # an input and the model's output

    def line(self) -> str:
        """The scores as one line of text."""
        formats = {"loss": ".3f", "perplexity": ".2f", "bleu": ".1f", "chrf": ".1f", "mse": ".4g"}
        formats |= {"pseudo_perplexity": ".2f", "cider": ".3f"}
        formats |= dict.fromkeys(("matthews", "pearson", "spearman"), ".3f")
        formats |= dict.fromkeys(("word_perplexity", "character_perplexity", "character_nats", "byte_bits"), ".4g")
        return "  ".join(
            f"{name} {value:{formats[name]}}" if name in formats else f"{name} {100 * value:.1f} %"
            for name, value in self.scores.items()
        )


class Validator(Protocol):
    """Scores a model on the validation data."""

    def measure(self, model: Any, interrupted: Callable[[], bool] = ...) -> ValidationResult | None:
        """All scores of a model; None if `interrupted` became true on the way."""
