"""What all searches share: hypotheses, the state of a decoder, and tokens that are never output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor

from dragoman.data.tokenizers.base import EOS, PAD, SOS, UNK

SUPPRESSED_TOKENS = (PAD, UNK, SOS)  # a model may give them probability, but they are no text
assert sorted(SUPPRESSED_TOKENS) == list(range(len(SUPPRESSED_TOKENS)))  # the first columns: cut as one block


class Hypothesis(NamedTuple):
    """One finished output; its tokens end in <eos>."""

    tokens: tuple[int, ...]
    token_scores: tuple[float, ...]  # log-probability of each token
    score: float  # their sum
    normalised: float  # the score that ranks it (`Scorer`)


Self = TypeVar("Self", bound="SearchState")


class SearchState(Protocol):
    """A decoder's state as a search uses it: a model's `State`, or the states of several models."""

    def select(self: Self, rows: Tensor) -> Self:
        """Keep, drop or repeat whole sources."""

    def reorder(self: Self, rows: Tensor) -> Self:
        """Reorder hypotheses within their source."""

    def expand(self: Self, hypotheses: int) -> Self:
        """Give every source this many copies of its one hypothesis."""


# tokens (N,), state → log-probabilities (N, V), which the search may change in place, and the next state
Step = Callable[[Tensor, Any], tuple[Tensor, Any]]


def suppress_tokens(log_probabilities: Tensor, at_limit: Tensor | None) -> Tensor:
    """Set tokens that may not follow to −∞, in place: SUPPRESSED_TOKENS, and all but <eos> where `at_limit` (N,)."""
    log_probabilities[:, : len(SUPPRESSED_TOKENS)] = float("-inf")
    if at_limit is not None:
        eos = log_probabilities[:, EOS].clone()
        log_probabilities.masked_fill_(at_limit[:, None], float("-inf"))
        log_probabilities[:, EOS] = eos
    return log_probabilities
