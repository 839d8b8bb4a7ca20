"""What every search shares: hypotheses, the state it needs, and tokens that are never output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor

from dragoman.data.tokenizers.base import EOS, PAD, SOS, UNK

NEVER_WRITTEN = (PAD, UNK, SOS)  # a model may give these probability, but they are no text
assert sorted(NEVER_WRITTEN) == list(range(len(NEVER_WRITTEN)))  # the first columns: `allowed` cuts them as a block


class Hypothesis(NamedTuple):
    """One finished output; its tokens end in <eos>."""

    tokens: tuple[int, ...]
    token_scores: tuple[float, ...]  # log-probability of each token
    score: float  # their sum
    normalised: float  # what hypotheses were ranked by


Self = TypeVar("Self", bound="Searchable")


class Searchable(Protocol):
    """What a search needs of a state; a model's State has it, and so may a bundle of several."""

    def select(self: Self, rows: Tensor) -> Self:
        """Keep some sources."""

    def reorder(self: Self, rows: Tensor) -> Self:
        """Exchange hypotheses."""

    def expand(self: Self, hypotheses: int) -> Self:
        """Copies of every source's one hypothesis."""


# tokens (N,), state → log-probabilities (N, V), which a search may change, state
Step = Callable[[Tensor, Any], tuple[Tensor, Any]]


def allowed(log_probabilities: Tensor, last: Tensor | None) -> Tensor:
    """Log-probabilities with what may not be written at −∞, in place; rows where `last` is True may only end."""
    log_probabilities[:, : len(NEVER_WRITTEN)] = float("-inf")
    if last is not None:
        end = log_probabilities[:, EOS].clone()
        log_probabilities.masked_fill_(last[:, None], float("-inf"))
        log_probabilities[:, EOS] = end
    return log_probabilities
