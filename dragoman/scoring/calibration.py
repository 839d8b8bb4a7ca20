"""Reliability diagrams, expected calibration error (Naeini et al. 2015) and Platt scaling (Platt 1999)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class ReliabilityBin(NamedTuple):
    """Tokens or outputs of similar confidence."""

    size: int
    confidence: float  # mean
    accuracy: float  # share that is correct


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: bins of equal width; of k bins, bin i has the confidences in (i/k, (i+1)/k]."""

    bins: tuple[ReliabilityBin, ...]

    @property
    def count(self) -> int:
        return sum(part.size for part in self.bins)

    @property
    def error(self) -> float:
        """Expected calibration error: Σ n/N |accuracy − confidence|."""
        gaps = (part.size * abs(part.accuracy - part.confidence) for part in self.bins)
        return sum(gaps) / max(1, self.count)


def reliability(
    confidences: Sequence[float] | NDArray[np.float64], correct: Sequence[bool] | NDArray[np.bool_], bins: int = 15
) -> Reliability:
    probabilities, hits = np.asarray(confidences, np.float64), np.asarray(correct, np.float64)
    assert probabilities.shape == hits.shape
    numbers = np.clip(np.ceil(probabilities * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(numbers, minlength=bins)
    probability_sums = np.bincount(numbers, probabilities, bins)
    hit_sums = np.bincount(numbers, hits, bins)
    return Reliability(
        tuple(
            ReliabilityBin(int(count), float(probability / max(1, count)), float(hit / max(1, count)))
            for count, probability, hit in zip(counts, probability_sums, hit_sums, strict=True)
        )
    )


class RiskPoint(NamedTuple):
    """What is left when outputs below a confidence are refused."""

    confidence: float
    coverage: float  # share of the outputs that is left
    error: float  # share of those that is wrong

    def __str__(self) -> str:
        return f"min_confidence {self.confidence:.3f} keeps {self.coverage:.1%} of the outputs, {self.error:.1%} wrong"


def risk_coverage(confidences: NDArray[np.float64], correct: NDArray[np.bool_]) -> list[RiskPoint]:
    """The risk–coverage curve (El-Yaniv and Wiener 2010), from the most confident outputs to all of them."""
    order = np.argsort(-confidences, kind="stable")
    sure, wrong = confidences[order], np.cumsum(~correct[order])
    last = np.append(sure[1:] != sure[:-1], True)  # outputs of equal confidence are kept or refused together
    return [
        RiskPoint(float(sure[index]), (index + 1) / len(sure), float(wrong[index] / (index + 1)))
        for index in np.flatnonzero(last).tolist()
    ]


def at_error_rate(curve: Sequence[RiskPoint], rate: float) -> RiskPoint | None:
    """The point that keeps most outputs with at most this share of wrong ones; None: even the surest are worse."""
    return max((point for point in curve if point.error <= rate), key=lambda point: point.coverage, default=None)


class PlattScale(NamedTuple):
    """Platt scaling: P = σ(slope · log p/(1 − p) + offset); slope 1 and offset 0 leave a probability as it is."""

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, log_probability: float) -> float:
        logit = self.slope * float(log_odds([log_probability])[0]) + self.offset
        return 1 / (1 + math.exp(-logit)) if logit > 0 else math.exp(logit) / (1 + math.exp(logit))


def log_odds(log_probabilities: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """log p/(1 − p) from log p, within ±700, where the exponential of a float does not overflow."""
    below_one = np.minimum(np.asarray(log_probabilities, np.float64), -1e-12)
    odds: NDArray[np.float64] = np.clip(below_one - np.log(-np.expm1(below_one)), -700.0, 700.0)
    return odds


def fit_platt_scale(
    log_probabilities: Sequence[float] | NDArray[np.float64], right: Sequence[bool] | NDArray[np.bool_]
) -> PlattScale:
    """The maximum a posteriori scale, by Newton's method.

    A Gaussian prior of variance 1 around slope 1 and offset 0 keeps the scale finite where there are few cases, or all
    are correct or all wrong. The slope is at least 0, so that scaling never reverses the order of two probabilities.
    """
    odds, truth = log_odds(log_probabilities), np.asarray(right, np.float64)
    features = np.stack([odds, np.ones_like(odds)], 1)  # (N, 2)
    for free in ((True, True), (False, True)):  # if the slope came out below 0, fix it at 0 and fit the offset alone
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
        logits = features @ weights
        return float(np.sum(np.logaddexp(0, logits) - truth * logits) + np.sum((weights - prior) ** 2) / 2)

    weights = start
    for _ in range(100):
        probabilities = 0.5 * (1 + np.tanh(features @ weights / 2))
        gradient = (features.T @ (probabilities - truth) + weights - prior)[free]
        curvature = probabilities * (1 - probabilities)
        hessian = ((features * curvature[:, None]).T @ features + np.eye(2))[np.ix_(free, free)]
        step, length = np.zeros(2), 1.0
        step[free] = np.linalg.solve(hessian, gradient)
        # Far from the minimum a whole Newton step may overshoot: halve it until the loss falls.
        while length > 1e-9 and loss(weights - length * step) > loss(weights):
            length /= 2
        weights = weights - length * step
        if np.abs(length * step).max() < 1e-10:
            break
    return weights


def cross_fitted(
    log_probabilities: Sequence[float] | NDArray[np.float64], right: Sequence[bool] | NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Scaled probabilities by two-fold cross-fitting: each half (even or odd indices) uses the scale of the other."""
    values, truth = np.asarray(log_probabilities, np.float64), np.asarray(right, np.bool_)
    out = np.empty_like(values)
    for half in range(2):
        scale = fit_platt_scale(values[1 - half :: 2], truth[1 - half :: 2])
        out[half::2] = [scale(value) for value in values[half::2]]
    return out
