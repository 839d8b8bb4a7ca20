"""Metrics of labels, tags and numbers against plain definitions and known values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.base.errors import DataError
from dragoman.scoring.label_metrics import (
    accuracy,
    bio_spans,
    class_scores,
    macro_f1,
    matthews,
    mean_squared_error,
    pearson,
    ranks,
    span_f1,
    spearman,
)

LABELS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=20)
PAIRS = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=15)


def test_known_values() -> None:
    found, expected = list("aabbc"), list("abbbc")
    assert accuracy(found, expected) == 0.8
    assert class_scores(found, expected) == {"a": (0.5, 1.0, 2 / 3), "b": (1.0, 2 / 3, 0.8), "c": (1.0, 1.0, 1.0)}
    assert macro_f1(found, expected) == pytest.approx((2 / 3 + 0.8 + 1) / 3)
    # The example of scikit-learn's documentation of matthews_corrcoef.
    assert matthews([1, -1, 1, 1], [1, 1, 1, -1]) == pytest.approx(-1 / 3)
    assert mean_squared_error([2.5, 0.0, 2, 8], [3, -0.5, 2, 7]) == 0.375
    # The example of SciPy's documentation of spearmanr.
    assert spearman([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]) == pytest.approx(0.8207826816681233, abs=1e-12)
    assert ranks([10, 30, 10, 20]).tolist() == [1.5, 4.0, 1.5, 3.0]


@given(LABELS)
def test_matthews_of_two_classes_equals_the_formula_of_1975(pairs: list[tuple[str, str]]) -> None:
    found, expected = ([label == "a" for label in side] for side in zip(*pairs, strict=True))
    cells = dict.fromkeys(itertools.product([True, False], repeat=2), 0)
    for pair in zip(found, expected, strict=True):
        cells[pair] += 1
    tp, tn, fp, fn = cells[True, True], cells[False, False], cells[True, False], cells[False, True]
    below = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert matthews(found, expected) == pytest.approx((tp * tn - fp * fn) / below if below else 0.0, abs=1e-12)


@given(LABELS)
def test_matthews_of_many_classes_is_the_correlation_of_one_hot_matrices(pairs: list[tuple[str, str]]) -> None:
    """Gorodkin's definition: covariances of one-hot rows, summed over classes."""
    found, expected = zip(*pairs, strict=True)
    one, other = (np.array([[label == name for name in "abc"] for label in side], float) for side in (found, expected))
    one, other = one - one.mean(0), other - other.mean(0)
    below = math.sqrt((one**2).sum() * (other**2).sum())
    slow = (one * other).sum() / below if below > 1e-9 else 0.0
    assert matthews(found, expected) == pytest.approx(slow, abs=1e-12)
    assert matthews(found, found) in (0.0, pytest.approx(1.0))
    assert 0 <= macro_f1(found, expected) <= 1


@given(PAIRS)
def test_correlations_equal_numpy_and_slow_ranks(pairs: list[tuple[int, int]]) -> None:
    found, expected = zip(*pairs, strict=True)
    varied = len(set(found)) > 1 and len(set(expected)) > 1

    def slow_ranks(values: tuple[int, ...]) -> list[float]:
        return [1 + sum(v < value for v in values) + (values.count(value) - 1) / 2 for value in values]

    assert ranks(found).tolist() == slow_ranks(found)
    linear = np.corrcoef(found, expected)[0, 1] if varied else 0.0
    ranked = np.corrcoef(slow_ranks(found), slow_ranks(expected))[0, 1] if varied else 0.0
    assert pearson(found, expected) == pytest.approx(linear, abs=1e-12)
    assert spearman(found, expected) == pytest.approx(ranked, abs=1e-12)
    assert spearman([value**3 for value in found], expected) == pytest.approx(ranked, abs=1e-12)


def test_correlations_of_constant_and_extreme_numbers() -> None:
    assert pearson([0.1] * 7, [1, 2, 3, 4, 5, 6, 7]) == 0.0  # the mean of seven 0.1 is not 0.1
    assert pearson([1e-200, 2e-200, 4e-200], [1, 2, 4]) == pytest.approx(1.0)
    assert pearson([1e200, 2e200, 4e200], [4, 2, 1]) == pytest.approx(pearson([1, 2, 4], [4, 2, 1]))
    with pytest.raises(DataError, match="found 1 predictions, expected at least 2"):
        pearson([1], [1])


def test_bio_spans() -> None:
    assert bio_spans(["O", "B-PER", "I-PER", "O", "B-LOC"]) == {("PER", 1, 3), ("LOC", 4, 5)}
    assert bio_spans(["B-A", "B-A", "I-A"]) == {("A", 0, 1), ("A", 1, 3)}
    assert bio_spans(["I-A", "I-B", "O", "I-B"]) == {("A", 0, 1), ("B", 1, 2), ("B", 3, 4)}
    assert bio_spans([]) == set()
    with pytest.raises(DataError, match="tag 2: found 'X-A', expected O, B-LABEL or I-LABEL"):
        bio_spans(["O", "X-A"])


def test_span_f1() -> None:
    found = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG"]]
    expected = [["B-PER", "I-PER", "O", "B-ORG"], ["O", "B-ORG"]]
    assert span_f1(found, expected) == (2 / 3, 2 / 3, 2 / 3)
    assert span_f1([["O"]], [["O"]]) == (0.0, 0.0, 0.0)
    with pytest.raises(DataError, match="sentence 2: found 1 tags, expected 2"):
        span_f1([["O"], ["O"]], [["O"], ["O", "O"]])


@pytest.mark.parametrize("score", [accuracy, macro_f1, matthews, mean_squared_error, pearson, spearman, span_f1])
def test_input_that_cannot_be_scored(score) -> None:
    with pytest.raises(DataError, match="cannot score 2 predictions against 1 targets"):
        score([1, 2], [1])
    with pytest.raises(DataError, match="nothing to score: found 0 predictions"):
        score([], [])
