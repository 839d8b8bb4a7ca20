"""Metrics of labels, numbers and tags against counts made by hand and by numpy."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dragoman.base.errors import DataError
from dragoman.scoring.label_metrics import classification_report, score_labels
from dragoman.scoring.registry import metrics_for

LABEL_METRICS, NUMBER_METRICS, TAG_METRICS = (metrics_for("labels"), metrics_for("numbers"), metrics_for("tags"))


def drawn(labels: str, count: int = 60) -> tuple[list[str], list[str]]:
    draw = random.Random(count)
    expected = [draw.choice(labels) for _ in range(count)]
    return [one if draw.random() < 0.6 else draw.choice(labels) for one in expected], expected


def f1(found: list[str], expected: list[str], label: str) -> float:
    right = sum(one == other == label for one, other in zip(found, expected, strict=True))
    return 2 * right / (found.count(label) + expected.count(label))


def test_two_labels_have_the_metrics_of_glue() -> None:
    found, expected = drawn("01")
    scores = score_labels(LABEL_METRICS, found, expected)
    assert scores["accuracy"] == sum(map(str.__eq__, found, expected)) / 60
    assert scores["f1"] == pytest.approx(f1(found, expected, "1"))
    assert scores["macro_f1"] == pytest.approx((f1(found, expected, "0") + f1(found, expected, "1")) / 2)
    as_numbers = [[int(label) for label in side] for side in (found, expected)]
    assert scores["matthews"] == pytest.approx(np.corrcoef(as_numbers)[0, 1])  # for two classes the same thing


def test_binary_f1_needs_two_labels() -> None:
    found, expected = drawn("abc")
    scores = score_labels(LABEL_METRICS, found, expected)
    assert set(scores) == {"accuracy", "macro_f1", "matthews"}
    assert scores["macro_f1"] == pytest.approx(np.mean([f1(found, expected, label) for label in "abc"]))
    with pytest.raises(DataError, match="3 labels, expected two"):
        score_labels(LABEL_METRICS, found, expected, ("f1",))
    with pytest.raises(DataError, match="Did you mean 'matthews'"):
        score_labels(LABEL_METRICS, found, expected, ("mathews",))


def test_the_positive_label_comes_from_the_label_set_of_the_run() -> None:
    def second(found: str, expected: str, labels: tuple[str, ...]) -> dict[str, float]:
        return score_labels(LABEL_METRICS, list(found), list(expected), labels=labels)

    assert second("11", "11", ("0", "1"))["f1"] == 1.0
    assert second("01", "11", ("0", "1"))["f1"] == pytest.approx(2 / 3)
    assert second("00", "00", ("0", "1"))["f1"] == 0.0
    assert "f1" not in second("01", "11", ("0", "1", "2"))
    with pytest.raises(DataError, match="3 labels, expected two"):
        score_labels(LABEL_METRICS, ["0"], ["1"], ("f1",), ("0", "1", "2"))


def test_number_metrics_equal_numpy() -> None:
    draw = np.random.default_rng(1)
    expected = draw.normal(size=50)
    found = expected + draw.normal(size=50)
    scores = score_labels(NUMBER_METRICS, list(found), list(expected))
    ranks = [np.argsort(np.argsort(side)) for side in (found, expected)]
    assert scores["mse"] == pytest.approx(((found - expected) ** 2).mean())
    assert scores["pearson"] == pytest.approx(np.corrcoef(found, expected)[0, 1])
    assert scores["spearman"] == pytest.approx(np.corrcoef(ranks)[0, 1])


def test_tag_metrics_include_span_f1_only_for_bio_tags() -> None:
    found, expected = [("A", "B"), ("A",)], [("A", "A"), ("A",)]
    scores = score_labels(TAG_METRICS, found, expected)
    assert scores == {"accuracy": 2 / 3, "macro_f1": pytest.approx(0.4), "exact_match": 0.5}
    spans = score_labels(TAG_METRICS, [("B-X", "I-X", "O")], [("B-X", "O", "O")])
    assert spans["span_f1"] == 0.0


def test_the_report_lists_every_label_most_frequent_first() -> None:
    found, expected = ["a", "b", "b", "c"], ["a", "b", "a", "a"]
    assert classification_report(found, expected) == {
        "a": {"precision": 1.0, "recall": 1 / 3, "f1": 0.5, "count": 3},
        "b": {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "count": 1},
        "c": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "count": 0},
    }
