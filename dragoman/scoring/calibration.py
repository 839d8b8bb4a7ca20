"""How sure against how often right: reliability, expected calibration error (Naeini et al. 2015), Platt's scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class ReliabilityBin(NamedTuple):
    """Tokens, or outputs, of like confidence."""

    size: int
    confidence: float  # mean
    accuracy: float  # share that was right


@dataclass(frozen=True)
class Reliability:
    """Groups of equal width between 0 and 1; of k groups, group i holds confidences in (i/k, (i+1)/k]."""

    bins: tuple[ReliabilityBin, ...]

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(one.size for one in self.bins)

    @property
    def error(self) -> float:
        """Expected calibration error: Σ n/N |accuracy − confidence|."""
        gaps = (one.size * abs(one.accuracy - one.confidence) for one in self.bins)
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
            ReliabilityBin(int(count), float(sums / max(1, count)), float(hit / max(1, count)))
            for count, sums, hit in zip(counts, total, hits, strict=True)
        )
    )


class PlattScale(NamedTuple):
    """P = σ(slope · log p/(1 − p) + offset): slope 1 and offset 0 take a probability as it is (Platt 1999)."""

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, logarithm: float) -> float:
        """The scaled probability of what has this log-probability."""
        height = self.slope * float(log_odds([logarithm])[0]) + self.offset
        return 1 / (1 + math.exp(-height)) if height > 0 else math.exp(height) / (1 + math.exp(height))


def log_odds(logarithms: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """log p/(1 − p) of log p, within ±700: what a float's exponential can bear."""
    found = np.minimum(np.asarray(logarithms, np.float64), -1e-12)
    odds: NDArray[np.float64] = np.clip(found - np.log(-np.expm1(found)), -700.0, 700.0)
    return odds


def fit_platt_scale(
    logarithms: Sequence[float] | NDArray[np.float64], right: Sequence[bool] | NDArray[np.bool_]
) -> PlattScale:
    """The scale under which the truth is most probable, by Newton's method.

    A prior of variance 1 around slope 1 and offset 0 keeps few cases, or cases all right or all wrong, from running
    away. The slope is never below 0: what was likelier before is not less likely after.
    """
    odds, truth = log_odds(logarithms), np.asarray(right, np.float64)
    features = np.stack([odds, np.ones_like(odds)], 1)  # (N, 2)
    for free in ((True, True), (False, True)):  # should the slope come out below 0, it is 0 and the offset alone fits
        start = np.array([1.0, 0.0]) if free[0] else np.zeros(2)
        best = _newton(features, truth, start, np.array(free))
        if best[0] >= 0:
            break
    return PlattScale(float(best[0]), float(best[1]))


def _newton(
    features: NDArray[np.float64], truth: NDArray[np.float64], start: NDArray[np.float64], free: NDArray[np.bool_]
) -> NDArray[np.float64]:
    prior = np.array([1.0, 0.0])

    def loss(weights: NDArray[np.float64]) -> float:
        height = features @ weights
        return float(np.sum(np.logaddexp(0, height) - truth * height) + np.sum((weights - prior) ** 2) / 2)

    weights = start
    for _ in range(100):
        chances = 0.5 * (1 + np.tanh(features @ weights / 2))
        slope = (features.T @ (chances - truth) + weights - prior)[free]
        curve = ((features * (chances * (1 - chances))[:, None]).T @ features + np.eye(2))[np.ix_(free, free)]
        step, length = np.zeros(2), 1.0
        step[free] = np.linalg.solve(curve, slope)
        while length > 1e-9 and loss(weights - length * step) > loss(weights):
            length /= 2
        weights = weights - length * step
        if np.abs(length * step).max() < 1e-10:
            break
    return weights


def cross_fitted(
    logarithms: Sequence[float] | NDArray[np.float64], right: Sequence[bool] | NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Scaled probabilities, each by the scale that the other half (odd places or even ones) gives."""
    found, truth = np.asarray(logarithms, np.float64), np.asarray(right, np.bool_)
    out = np.empty_like(found)
    for half in range(2):
        scale = fit_platt_scale(found[1 - half :: 2], truth[1 - half :: 2])
        out[half::2] = [scale(one) for one in found[half::2]]
    return out
