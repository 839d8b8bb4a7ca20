"""What every search shares: hypotheses, limits, and what a step must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeVar

from torch import Tensor

from dragoman.config.settings import Range, setting
from dragoman.data.tokenizers.tokenizer import EOS, PAD, SOS, UNK

NEVER_WRITTEN = (PAD, UNK, SOS)  # a model may give these probability, but they are no text
assert sorted(NEVER_WRITTEN) == list(range(len(NEVER_WRITTEN)))  # the first columns: `allowed` cuts them as a block


@dataclass(frozen=True)
class SearchConfig:
    """How the best output is looked for."""

    beam: Annotated[int, Range(1, None)] = setting(5, help="hypotheses kept side by side; 1 is greedy search")
    length_penalty: Annotated[float, Range(0.0, None)] = setting(
        1.0, help="a hypothesis of t tokens scores Σ log p / t^penalty; 0 does not normalise"
    )
    normalisation: Literal["power", "gnmt", "none"] = setting(
        "power", help="what Σ log p is divided by: t^penalty, ((5 + t) / 6)^penalty (Wu et al. 2016), or nothing"
    )
    coverage_penalty: Annotated[float, Range(0.0, None)] = setting(
        0.0, help="β: what an output leaves unread of its source costs it this much (Wu et al. 2016); needs attention"
    )
    stop: Literal["complete", "certain"] = setting(
        "complete", help="when as many outputs as the beam is wide are complete, or when no open one can still win"
    )
    min_length: Annotated[int, Range(0, None)] = setting(0, help="fewest tokens written, if the length limit allows it")
    no_repeat_ngram: Annotated[int, Range(0, None)] = setting(
        0, help="no n tokens in a row are written twice; 0: they may be"
    )
    beam_groups: Annotated[int, Range(1, None)] = setting(
        1, help="parts of the beam that keep away from each other's tokens, for diverse outputs; divides the beam"
    )
    diversity_penalty: Annotated[float, Range(0.0, None)] = setting(
        0.5, help="with beam_groups: what each use of a token by an earlier group costs (Vijayakumar et al. 2016)"
    )
    max_length: Annotated[int, Range(0, None)] = setting(
        0, help="most tokens written; 0 follows the source's length and the ratio seen in training"
    )


def divisor(length: int, penalty: float, normalisation: str = "power") -> float:
    """What the score of a hypothesis of so many tokens is divided by; never smaller for a longer one."""
    if normalisation == "none":
        return 1.0
    base: float = length if normalisation == "power" else (5 + length) / 6
    return float(base**penalty)


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
