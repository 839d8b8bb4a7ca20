"""How sure against how often right: reliability and expected calibration error (Naeini et al. 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Bin(NamedTuple):
    """Tokens of like confidence."""

    tokens: int
    confidence: float  # mean
    accuracy: float  # share that was right


@dataclass(frozen=True)
class Reliability:
    """Tokens in groups of equal width between 0 and 1; of k groups, group i holds confidences in (i/k, (i+1)/k]."""

    bins: tuple[Bin, ...]

    @property
    def count(self) -> int:
        """How many tokens there are."""
        return sum(one.tokens for one in self.bins)

    @property
    def error(self) -> float:
        """Expected calibration error: Σ n/N |accuracy − confidence|."""
        gaps = (one.tokens * abs(one.accuracy - one.confidence) for one in self.bins)
        return sum(gaps) / max(1, self.count)


def reliability(
    confidences: Sequence[float] | NDArray[np.float64], correct: Sequence[bool] | NDArray[np.bool_], bins: int = 15
) -> Reliability:
    """The groups that confidences and their truth make."""
    sure, right = np.asarray(confidences, np.float64), np.asarray(correct, np.float64)
    assert sure.shape == right.shape
    group = np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(group, minlength=bins)
    total = np.bincount(group, sure, bins)
    hits = np.bincount(group, right, bins)
    return Reliability(
        tuple(
            Bin(int(count), float(sums / max(1, count)), float(hit / max(1, count)))
            for count, sums, hit in zip(counts, total, hits, strict=True)
        )
    )
