"""Expected calibration error against values made by hand; Platt scaling recovers a known scale."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dragoman.scoring.calibration import PlattScale, ReliabilityBin, cross_fitted, fit_platt_scale, reliability


def test_bins_equal_those_made_by_hand() -> None:
    """Five bins: 0.1, 0.2 | 0.3 | – | 0.7, 0.8 | 0.9, 1.0; a bin includes its upper end."""
    found = reliability([0.1, 0.2, 0.3, 0.7, 0.8, 0.9, 1.0], [False, True, False, True, True, True, False], bins=5)
    expected = [(2, 0.15, 0.5), (1, 0.3, 0.0), (0, 0.0, 0.0), (2, 0.75, 1.0), (2, 0.95, 0.5)]
    for one, other in zip(found.bins, expected, strict=True):
        assert one == pytest.approx(other)
    assert found.count == 7
    assert found.error == pytest.approx((2 * 0.35 + 0.3 + 2 * 0.25 + 2 * 0.45) / 7)


def test_zero_and_one_are_in_the_first_and_last_bin() -> None:
    found = reliability([0.0, 1.0, 1.0 + 1e-9], [False, True, True], bins=4)
    assert [one.size for one in found.bins] == [1, 0, 0, 2]
    assert found.error == pytest.approx(0.0, abs=1e-8)


def test_no_confidences_have_no_error() -> None:
    assert reliability([], []).error == 0.0
    assert reliability([], [], bins=2).bins == (ReliabilityBin(0, 0.0, 0.0),) * 2


def test_calibrated_confidences_have_a_small_error_and_overconfident_ones_a_large_one() -> None:
    draw = np.random.default_rng(1)
    sure = draw.uniform(0, 1, 20_000)
    right = draw.uniform(0, 1, 20_000) < sure
    assert reliability(sure, right).error < 0.02
    assert reliability(np.sqrt(sure), right).error == pytest.approx(np.mean(np.sqrt(sure) - sure), abs=0.01)


# --- whole outputs


def test_fitting_recovers_the_true_scale() -> None:
    """Outputs of confidence p are correct with probability σ(0.4 · log-odds − 0.5); the fit recovers both numbers."""
    draw = np.random.default_rng(2)
    chances = draw.uniform(0.01, 0.99, 20_000)
    truth = PlattScale(0.4, -0.5)
    honest = np.array([truth(math.log(one)) for one in chances])
    right = draw.uniform(0, 1, 20_000) < honest
    found = fit_platt_scale(np.log(chances), right)
    assert found == pytest.approx(truth, abs=0.05)
    assert reliability(chances, right).error > 0.1
    assert reliability(cross_fitted(np.log(chances), right), right).error < 0.02


def test_the_fitted_scale_is_the_best_of_a_fine_grid() -> None:
    draw = np.random.default_rng(3)
    chances = draw.uniform(0.05, 0.95, 60)
    right = draw.uniform(0, 1, 60) < chances**2
    odds = np.log(chances / (1 - chances))
    slopes, offsets = np.meshgrid(np.linspace(-1, 3, 401), np.linspace(-3, 3, 601), indexing="ij")
    heights = slopes[..., None] * odds + offsets[..., None]
    losses = (np.logaddexp(0, heights) - right * heights).sum(-1) + ((slopes - 1) ** 2 + offsets**2) / 2
    place = np.unravel_index(losses.argmin(), losses.shape)
    assert fit_platt_scale(np.log(chances), right) == pytest.approx((slopes[place], offsets[place]), abs=0.011)


def test_scales_stay_finite_where_all_outputs_are_correct_or_wrong() -> None:
    assert PlattScale()(math.log(0.3)) == pytest.approx(0.3)
    assert PlattScale()(0.0) == pytest.approx(1.0)
    assert PlattScale()(-2000.0) == pytest.approx(0.0, abs=1e-300)
    for right in (True, False):  # nothing runs away where all is right, or all is wrong
        found = fit_platt_scale([-0.1, -3.0, -50.0, -900.0], [right] * 4)
        assert all(math.isfinite(part) for part in found)
    turned = fit_platt_scale(np.log([0.9] * 50 + [0.1] * 50), [False] * 50 + [True] * 50)
    assert turned.slope == 0.0  # what was likelier is never made less likely
    assert turned(math.log(0.9)) == pytest.approx(0.5, abs=0.01)
    assert fit_platt_scale([], []) == (1.0, 0.0)
