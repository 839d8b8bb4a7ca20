"""What all searches share: hypotheses, a decoding step, and tokens that are never output."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dragoman.data.tokenizers import EOS, PAD, SOS, UNK

if TYPE_CHECKING:
    from torch import Tensor

SUPPRESSED_TOKENS = (PAD, UNK, SOS)  # a model may give them probability, but they are no text
assert sorted(SUPPRESSED_TOKENS) == list(range(len(SUPPRESSED_TOKENS)))  # the first columns: cut as one block


class Hypothesis(NamedTuple):
    """One finished output; its tokens end in <eos>."""

    tokens: tuple[int, ...]
    token_scores: tuple[float, ...]  # log-probability of each token
    score: float  # their sum
    normalised: float  # the score that ranks it (`Scorer`)


# tokens (N,), state → log-probabilities (N, V), which the search may change in place, and the next state
Step: TypeAlias = "Callable[[Tensor, Any], tuple[Tensor, Any]]"


def suppress_tokens(log_probabilities: Tensor, at_limit: Tensor | None) -> Tensor:
    """Set tokens that may not follow to −∞, in place: SUPPRESSED_TOKENS, and all but <eos> where `at_limit` (N,)."""
    log_probabilities[:, : len(SUPPRESSED_TOKENS)] = float("-inf")
    if at_limit is not None:
        eos = log_probabilities[:, EOS].clone()
        log_probabilities.masked_fill_(at_limit[:, None], float("-inf"))
        log_probabilities[:, EOS] = eos
    return log_probabilities


def split_at_eos(tokens: Iterable[int]) -> list[list[int]]:
    """The tokens of each text; every <eos> begins another."""
    texts: list[list[int]] = [[]]
    for token in tokens:
        if token == EOS:
            texts.append([])
        else:
            texts[-1].append(token)
    return texts
