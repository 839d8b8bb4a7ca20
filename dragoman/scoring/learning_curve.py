"""How a score grows with the number of training pairs: a power law with an interval, from a few measured sizes.

The error of a model (what its score lacks of a perfect one) falls as a power of the training pairs, towards a floor:
e(n) = a · (u + (1 − u) · (n / N)^−c), with the largest size N (Hestness et al. 2017). Four sizes do not determine three
numbers, so there is no single best curve. Every exponent c and floor u on a grid keeps the probability that the sizes
give it; a and the noise of training are integrated out exactly (conjugate normal regression).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dragoman.scoring.metric import FloatArray, TextMetric, Units
from dragoman.scoring.registry import select_metrics
from dragoman.scoring.significance import Interval, interval

EXPONENTS = np.linspace(0.02, 1.0, 50)
FLOORS = np.linspace(
    0.0, 0.98, 50
)  # as a share of the error at the largest size; before any data, low ones are likelier
PRIOR_WEIGHT = 3.0  # measurements of the noise of training that the standard error counts for
BLOCK = 100  # draws at once


def errors_of(scores: FloatArray, metric: TextMetric) -> FloatArray:
    """What scores lack of a perfect one; an error rate is one already. Its own inverse."""
    return (1.0 if metric.percent else 100.0) - scores if metric.higher_is_better else scores


def predict_scores(sizes: Sequence[int], drawn: FloatArray, wanted: Sequence[float], metric: TextMetric) -> FloatArray:
    """Scores (draws, W) that trainings with `wanted` numbers of pairs may have, given those of some `sizes`.

    `drawn` (draws, S) are the scores of every size, the largest last, on held-out texts drawn again and again, the same
    texts for all sizes. Each draw takes one curve by its probability, and adds the noise of one more training.
    """
    generator = np.random.default_rng(1)
    measured = errors_of(drawn, metric)
    # The noise of a training is about that of one size against the next when the texts are drawn anew.
    expected = max(1e-12, float(np.var(measured[:, -1] - measured[:, -2])) / 2)
    exponents, floors = (grid.ravel()[:, None] for grid in np.meshgrid(EXPONENTS, FLOORS))

    def shape(pairs: Sequence[float]) -> FloatArray:
        return np.asarray(floors + (1 - floors) * (np.asarray(pairs, dtype=np.float64) / sizes[-1]) ** -exponents)

    known, new = shape(sizes), shape(wanted)  # (curves, S), (curves, W)
    trust = np.sqrt(np.asarray(sizes, dtype=np.float64) / sizes[-1])  # no law holds far away: small sizes count less
    squares, freedom = (trust * known**2).sum(1), PRIOR_WEIGHT + len(sizes) - 1
    prior = np.log(1 - floors[:, 0]) - 0.5 * np.log(squares)
    predicted = []
    for first in range(0, len(measured), BLOCK):
        part = measured[first : first + BLOCK]
        levels = (trust * part) @ known.T / squares  # (draws, curves): the best a
        missed = np.maximum(part**2 @ trust[:, None] - levels**2 * squares, 0.0) + PRIOR_WEIGHT * expected
        weights = prior - 0.5 * freedom * np.log(missed)
        # The largest of weights with Gumbel noise is a draw from their softmax.
        curve, rows = (weights + generator.gumbel(size=weights.shape)).argmax(1), np.arange(len(part))
        noise = np.sqrt(missed[rows, curve] / generator.chisquare(freedom, len(part)))
        level = levels[rows, curve] + noise / np.sqrt(squares[curve]) * generator.standard_normal(len(part))
        errors = level[:, None] * new[curve] + (noise * generator.standard_normal(len(part)))[:, None]
        predicted.append(np.maximum(errors, 0.0))
    return errors_of(np.concatenate(predicted), metric)


class CurvePoint(NamedTuple):
    """A training with a part of the data."""

    pairs: int
    score: float
    interval: Interval
    model: str
    cut_short: bool  # whether the time ended training


class Gain(NamedTuple):
    """What more pairs would bring: a median and the interval in which 95 % of the predictions lie."""

    more: int
    gain: float
    interval: Interval


@dataclass(frozen=True)
class Curve:
    """The result of `curve`. Scores are as the metric has them: fractions where reports show percent."""

    metric: str
    units: Units
    held_out: int  # texts that judged every size
    points: list[CurvePoint]
    gains: list[Gain]
    folder: Path
    drawn: FloatArray = field(repr=False)  # (draws, sizes), of texts drawn with replacement

    def predict(self, pairs: Sequence[float], points: int | None = None) -> FloatArray:
        """Scores (draws, len(pairs)) that trainings with so many pairs may have, by the first `points` sizes."""
        sizes, drawn = [point.pairs for point in self.points[:points]], self.drawn[:, :points]
        return predict_scores(sizes, drawn, pairs, self.text_metric)

    def gain(self, more: int, points: int | None = None) -> Gain:
        """What so many pairs beyond the last of the first `points` sizes would bring."""
        last = self.points[:points][-1]
        gains = self.predict([last.pairs + more], points)[:, 0] - self.drawn[:, :points][:, -1]
        return Gain(more, float(np.median(gains)), interval(gains))

    @property
    def text_metric(self) -> TextMetric:
        return select_metrics((self.metric,), self.units)[self.metric]

    def as_dict(self) -> dict[str, Any]:
        table = asdict(replace(self, drawn=np.zeros(0)))
        del table["drawn"]
        points = [point._asdict() | {"interval": list(point.interval)} for point in self.points]
        gains = [gain._asdict() | {"interval": list(gain.interval)} for gain in self.gains]
        return table | {"points": points, "gains": gains, "folder": str(self.folder)}
