"""Metrics of classes, tags and numbers (FIELD I5; those of GLUE, Wang et al. 2018), as plain functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from dragoman.errors import DataError
from dragoman.scoring.metric import Numbers


def _check(found: Sequence[object], expected: Sequence[object], least: int = 1) -> None:
    if len(found) != len(expected):
        raise DataError(f"cannot score {len(found)} outputs against {len(expected)} truths: expected as many of each")
    if len(found) < least:
        raise DataError(f"nothing to score: found {len(found)} outputs, expected at least {least}")


def accuracy(found: Sequence[Hashable], expected: Sequence[Hashable]) -> float:
    """The share of labels that are right."""
    _check(found, expected)
    return sum(one == other for one, other in zip(found, expected, strict=True)) / len(found)


class FScore(NamedTuple):
    """Precision, recall and their harmonic mean; each 0 where nothing could be counted."""

    precision: float
    recall: float
    f1: float


def f_score(right: int, found: int, expected: int) -> FScore:
    """The F₁ of so many right among those found and those expected."""
    return FScore(
        right / found if found else 0.0,
        right / expected if expected else 0.0,
        2 * right / (found + expected) if found + expected else 0.0,
    )


def class_scores(found: Sequence[Hashable], expected: Sequence[Hashable]) -> dict[Hashable, FScore]:
    """The F₁ of every class that was found or expected."""
    _check(found, expected)
    right = Counter(one for one, other in zip(found, expected, strict=True) if one == other)
    written, true = Counter(found), Counter(expected)
    return {label: f_score(right[label], written[label], true[label]) for label in true | written}


def macro_f1(found: Sequence[Hashable], expected: Sequence[Hashable]) -> float:
    """The mean F₁ of all classes that were found or expected, each counting the same however rare."""
    scores = class_scores(found, expected)
    return sum(score.f1 for score in scores.values()) / len(scores)


def matthews(found: Sequence[Hashable], expected: Sequence[Hashable]) -> float:
    """The correlation of Matthews (1975) between −1 and 1, for any number of classes (Gorodkin 2004); CoLA's metric.

    0 where one side has only one class.
    """
    _check(found, expected)
    count = len(found)
    right = sum(one == other for one, other in zip(found, expected, strict=True))
    written, true = Counter(found), Counter(expected)
    both = count * right - sum(written[label] * true[label] for label in written)
    spreads = [count**2 - sum(size**2 for size in sizes.values()) for sizes in (written, true)]
    return both / math.sqrt(spreads[0] * spreads[1]) if all(spreads) else 0.0


def mean_squared_error(found: Sequence[float], expected: Sequence[float]) -> float:
    """The mean of squared differences."""
    _check(found, expected)
    return float(np.mean((np.asarray(found, dtype=np.float64) - np.asarray(expected, dtype=np.float64)) ** 2))


def pearson(found: Sequence[float], expected: Sequence[float]) -> float:
    """The linear correlation between −1 and 1; 0 where one side does not vary."""
    _check(found, expected, least=2)
    sides = [np.asarray(side, dtype=np.float64) for side in (found, expected)]
    if any((side == side[0]).all() for side in sides):  # the mean of equal numbers need not equal them
        return 0.0
    one, other = (side - side.mean() for side in sides)
    # Each is divided by its own largest first, so that tiny or huge numbers do not vanish or overflow when squared.
    one, other = one / np.abs(one).max(), other / np.abs(other).max()
    return float(np.clip(one @ other / math.sqrt(float(one @ one) * float(other @ other)), -1.0, 1.0))


def ranks(values: Sequence[float]) -> Numbers:
    """The rank of every number, from 1; equal ones share the mean of theirs."""
    _, places, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[places])


def spearman(found: Sequence[float], expected: Sequence[float]) -> float:
    """The correlation of ranks: 1 for any growing relation."""
    _check(found, expected, least=2)
    return pearson(list(ranks(found)), list(ranks(expected)))


# --- tagging


class Span(NamedTuple):
    """Tokens from `first` up to `last`, not included, that bear one label."""

    label: str
    first: int
    last: int


def spans(tags: Sequence[str]) -> set[Span]:
    """The spans of a row of BIO tags (B-PER, I-PER, O).

    An I- that continues no span of its label begins one, as the CoNLL evaluation reads it.
    """
    found: set[Span] = set()
    label, first = "", 0
    for place, tag in enumerate([*tags, "O"]):
        mark, _, name = tag.partition("-")
        if tag != "O" and (mark not in ("B", "I") or not name):
            raise DataError(f"tag {place + 1}: found '{tag}', expected O, B-LABEL or I-LABEL")
        if label and (mark != "I" or name != label):
            found.add(Span(label, first, place))
            label = ""
        if tag != "O" and not label:
            label, first = name, place
    return found


def span_f1(found: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> FScore:
    """The F₁ of whole spans: label and both ends must be right (Tjong Kim Sang and De Meulder 2003)."""
    _rows(found, expected)
    pairs = [(spans(one), spans(other)) for one, other in zip(found, expected, strict=True)]
    return f_score(
        sum(len(one & other) for one, other in pairs),
        sum(len(one) for one, _ in pairs),
        sum(len(other) for _, other in pairs),
    )


def _rows(found: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> None:
    _check(found, expected)
    for number, (one, other) in enumerate(zip(found, expected, strict=True), 1):
        if len(one) != len(other):
            raise DataError(f"sentence {number}: found {len(one)} tags, expected {len(other)}")
