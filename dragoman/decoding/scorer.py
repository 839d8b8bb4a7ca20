"""The score that hypotheses are ranked by; every search reads it from one `Scorer`.

    score = Σ log p / divisor(length) + coverage

Beam search, greedy search and the CUDA-graph beam differ in speed, never in the score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dragoman.decoding.config import SearchConfig
from dragoman.decoding.hypothesis import Hypothesis

if TYPE_CHECKING:
    from torch import Tensor

NEG_INF = float("-inf")
MIN_COVERAGE = 1e-6  # attention below this counts as this much: log 0 would leave nothing to compare


@dataclass(frozen=True)
class Scorer:
    """Length normalisation and penalties; the defaults divide Σ log p by the number of tokens."""

    length_penalty: float = 1.0  # α
    normalisation: Literal["power", "gnmt", "none"] = "power"  # t^α, ((5 + t) / 6)^α (Wu et al. 2016, eq. 14), or 1
    coverage_penalty: float = 0.0  # β of Wu et al. 2016, eq. 14
    diversity_penalty: float = 0.0  # λ of Vijayakumar et al. 2016

    @classmethod
    def from_config(cls, config: SearchConfig) -> Scorer:
        return cls(config.length_penalty, config.normalisation, config.coverage_penalty, config.diversity_penalty)

    def divisor(self, length: int) -> float:
        """The divisor of Σ log p for `length` tokens, <eos> included; it never falls as the length grows."""
        if self.normalisation == "none":
            return 1.0
        base: float = length if self.normalisation == "power" else (5 + length) / 6
        return float(base**self.length_penalty)

    def divisors(self, max_length: int) -> list[float]:
        """The divisors of the lengths 0 to `max_length`, for `BeamState.divisors`; that of length 0 is never used."""
        return [1.0, *(self.divisor(length) for length in range(1, max_length + 1))]

    def hypothesis(self, tokens: Sequence[int], token_scores: Sequence[float], bonus: float = 0.0) -> Hypothesis:
        """A finished output with its score; `bonus` is added to Σ log p for the ranking alone."""
        total = sum(token_scores)
        return Hypothesis(tuple(tokens), tuple(token_scores), total, (total + bonus) / self.divisor(len(tokens)))

    @staticmethod
    def score(totals: Tensor, divisor: Tensor, coverage: Tensor | None = None) -> Tensor:
        """Scores (B, C) of candidates with Σ log p `totals` (B, C), as if they were complete."""
        scores = totals / divisor
        return scores if coverage is None else scores + coverage

    def coverage(self, attention: Tensor, mask: Tensor) -> Tensor:
        """β Σ_i log min(Σ_t attention_ti, 1) over real source tokens: attention (B, k, S), mask (B, S) → (B, k)."""
        logs = attention.clamp(MIN_COVERAGE, 1.0).log().masked_fill(~mask[:, None], 0.0)
        return self.coverage_penalty * logs.sum(2)

    def diversity(self, counts: Tensor) -> Tensor:
        """What tokens cost that hypotheses of earlier groups chose `counts` times at the same step.

        This changes what a group chooses, never the score of a hypothesis.
        """
        return self.diversity_penalty * counts


def best_possible(totals: Tensor, limits: Tensor, divisors: Tensor) -> Tensor:
    """The best score (B,) that open hypotheses with Σ log p `totals` (B, k) can still reach.

    Log-probabilities are never positive and divisors never fall: it is the score of the best one at the length limit,
    if all its further tokens had probability 1.
    """
    best: Tensor = totals.amax(1) / divisors.take(limits)
    return best
