"""Calibration error (FIELD I) against numbers made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dragoman.scoring.calibration import Bin, reliability


def test_groups_made_by_hand() -> None:
    """Five groups: 0.1, 0.2 | 0.3 | – | 0.7, 0.8 | 0.9, 1.0; the upper end of a group belongs to it."""
    found = reliability([0.1, 0.2, 0.3, 0.7, 0.8, 0.9, 1.0], [False, True, False, True, True, True, False], bins=5)
    expected = [(2, 0.15, 0.5), (1, 0.3, 0.0), (0, 0.0, 0.0), (2, 0.75, 1.0), (2, 0.95, 0.5)]
    for one, other in zip(found.bins, expected, strict=True):
        assert one == pytest.approx(other)
    assert found.count == 7
    assert found.error == pytest.approx((2 * 0.35 + 0.3 + 2 * 0.25 + 2 * 0.45) / 7)


def test_ends_belong_to_the_first_and_last_group() -> None:
    found = reliability([0.0, 1.0, 1.0 + 1e-9], [False, True, True], bins=4)
    assert [one.tokens for one in found.bins] == [1, 0, 0, 2]
    assert found.error == pytest.approx(0.0, abs=1e-8)


def test_nothing_has_no_error() -> None:
    assert reliability([], []).error == 0.0
    assert reliability([], [], bins=2).bins == (Bin(0, 0.0, 0.0),) * 2


def test_honest_confidences_have_a_small_error_and_boasts_a_large_one() -> None:
    draw = np.random.default_rng(1)
    sure = draw.uniform(0, 1, 20_000)
    right = draw.uniform(0, 1, 20_000) < sure
    assert reliability(sure, right).error < 0.02
    assert reliability(np.sqrt(sure), right).error == pytest.approx(np.mean(np.sqrt(sure) - sure), abs=0.01)
