"""The power law of `dragoman curve`, on scores whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from dragoman.scoring.learning_curve import errors_of, predict_scores
from dragoman.scoring.metric import FloatArray
from dragoman.scoring.registry import select_metrics

SIZES = [1000, 2000, 4000, 8000]


def drawn(scores: FloatArray, noise: float, generator: np.random.Generator, draws: int = 100) -> FloatArray:
    """Scores of every size (draws, S) as a bootstrap would draw them."""
    return scores + noise * generator.standard_normal((draws, len(scores)))


def test_the_interval_has_the_truth_nearly_always_and_is_not_endless() -> None:
    """Fifty made-up curves with the noise of training: scores of a size twice the largest."""
    metric, generator = select_metrics(("bleu",))["bleu"], np.random.default_rng(1)
    within, widths = 0, []
    for _ in range(50):
        level, floor, exponent = generator.uniform(40, 80), generator.uniform(0, 0.9), generator.uniform(0.1, 0.8)
        errors = level * (floor + (1 - floor) * (np.array([*SIZES, 16_000]) / 8000) ** -exponent)
        scores = 100 - errors + 0.4 * generator.standard_normal(5)
        predicted = predict_scores(SIZES, drawn(scores[:4], 0.3, generator), [16_000], metric)
        low, high = np.quantile(predicted, [0.025, 0.975])
        within += bool(low <= scores[4] <= high)
        widths.append(high - low)
    assert within >= 45
    assert np.median(widths) < 6  # BLEU; the gains are up to 30


def test_error_rates_fall_and_stay_above_zero() -> None:
    metric = select_metrics(("wer",))["wer"]
    rates = 0.5 * (np.array(SIZES) / 1000.0) ** -0.5
    predicted = predict_scores(SIZES, np.tile(rates, (200, 1)), [16_000, 10**9], metric)
    assert np.median(predicted[:, 0]) == pytest.approx(0.5 * 16**-0.5, abs=0.01)
    assert (predicted >= 0).all()
    assert np.median(predicted[:, 1]) < 0.1


def test_a_score_and_its_error_are_mirror_images() -> None:
    for name, best in (("bleu", 100.0), ("exact_match", 1.0), ("wer", 0.0)):
        metric = select_metrics((name,))[name]
        assert errors_of(np.array([best]), metric)[0] == 0
        assert errors_of(errors_of(np.array([0.25]), metric), metric)[0] == 0.25
