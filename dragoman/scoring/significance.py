"""How sure a score is, and whether two systems differ (FIELD I6), for any metric of the table.

Segments are drawn again, or exchanged between two systems, and the sums of their counts combined anew; what a draw
costs is one product of matrices, whatever the metric. Every draw follows from the seed, so all systems and metrics see
the same draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dragoman.errors import DataError
from dragoman.scoring.metric import FloatArray, References, Statistics, TextMetric

DEFAULT_DRAWS = 1000  # draws
BLOCK = 1 << 22  # numbers held at once
ROUNDING = 1e-9  # sums in another order must not turn an equal difference into a smaller one


class Interval(NamedTuple):
    """Where a score lies with the asked-for confidence."""

    low: float
    high: float


def _blocks(draws: int, segments: int) -> Iterator[int]:
    most = max(1, BLOCK // max(1, segments))
    for first in range(0, draws, most):
        yield min(most, draws - first)


def bootstrap_sums(rows: FloatArray, draws: int = DEFAULT_DRAWS, seed: int = 1) -> FloatArray:
    """Sums of counts (times, K) of corpora drawn with replacement from these segments (S, K)."""
    draw, segments = np.random.default_rng(seed), len(rows)
    found = []
    for corpora in _blocks(draws, segments):
        # Segments of one corpus after another: counting them all at once is far faster than drawing the counts.
        places = draw.integers(0, segments, (corpora, segments)) + segments * np.arange(corpora)[:, None]
        weights = np.bincount(places.ravel(), minlength=corpora * segments).reshape(corpora, segments)
        found.append(weights.astype(np.float64) @ rows)
    return np.concatenate(found)


def exchange_sums(difference: FloatArray, draws: int = DEFAULT_DRAWS, seed: int = 1) -> FloatArray:
    """Sums (times, K) of the rows of a difference between two systems that a coin chose for exchange."""
    draw, segments = np.random.default_rng(seed), len(difference)
    return np.concatenate(
        [
            draw.integers(0, 2, (corpora, segments), dtype=np.int8).astype(np.float64) @ difference
            for corpora in _blocks(draws, segments)
        ]
    )


def bootstrap(metric: TextMetric, statistics: Statistics, draws: int = DEFAULT_DRAWS, seed: int = 1) -> FloatArray:
    """The scores (times,) of corpora drawn with replacement from the segments of this one."""
    return metric.combine(bootstrap_sums(statistics.rows, draws, seed))


def interval(scores: FloatArray, confidence: float = 0.95) -> Interval:
    """The middle part of bootstrapped scores."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(scores, [tail, 1 - tail])
    return Interval(float(low), float(high))


def intervals(
    metrics: Mapping[str, TextMetric], counts: Mapping[str, Statistics], draws: int = DEFAULT_DRAWS, seed: int = 1
) -> dict[str, list[float]]:
    """The 95 % interval of every metric, as JSON takes it."""
    return {name: list(interval(bootstrap(metric, counts[name], draws, seed))) for name, metric in metrics.items()}


def _p_value(differences: FloatArray, observed: float) -> float:
    """The share of draws at least as far apart as what was seen, which itself counts as one of them."""
    scale = ROUNDING * max(1.0, abs(observed))
    return (1 + int((np.abs(differences) >= abs(observed) - scale).sum())) / (len(differences) + 1)


def paired_bootstrap(one: FloatArray, other: FloatArray, observed: float) -> float:
    """The two-sided p-value of two systems from their scores on the same drawn corpora.

    Koehn 2004, with the draws moved so that no difference is their mean (Riezler and Maxwell 2005): how often chance
    alone gives a difference as large as the observed one. sacreBLEU's own test centres absolute differences, which
    leaves one tail: its p-values are about half of these.
    """
    differences = one - other
    return _p_value(differences - differences.mean(), observed)


def approximate_randomisation(
    metric: TextMetric, one: Statistics, other: Statistics, draws: int = DEFAULT_DRAWS, seed: int = 1
) -> float:
    """The two-sided p-value of two systems when each segment's outputs are exchanged or not by a coin (Noreen 1989)."""
    if one.rows.shape != other.rows.shape:
        raise DataError(f"found {len(one.rows)} and {len(other.rows)} segments, expected as many of each system")
    return _randomised(metric, one.rows, other.rows, exchange_sums(other.rows - one.rows, draws, seed))


def _randomised(metric: TextMetric, one: FloatArray, other: FloatArray, moved: FloatArray) -> float:
    left, right = one.sum(axis=0), other.sum(axis=0)
    differences = metric.combine(left + moved) - metric.combine(right - moved)
    return _p_value(differences, float(metric.combine(left) - metric.combine(right)))


class BaselineComparison(NamedTuple):
    """A system against the baseline."""

    difference: float
    better: bool
    bootstrap: float  # p-values, for each comparison by itself: of twenty, one is below 0.05 by chance
    randomisation: float


class SystemScore(NamedTuple):
    """What one system reaches by one metric; the baseline has nothing to be compared with."""

    metric: str
    system: str
    score: float
    interval: Interval
    versus: BaselineComparison | None
    signature: str

    def as_dict(self) -> dict[str, Any]:
        """The standing as JSON takes it."""
        versus = self.versus._asdict() if self.versus else None
        return self._asdict() | {"interval": list(self.interval), "versus": versus}


def compare(
    systems: Mapping[str, Sequence[str]],
    references: References,
    metrics: Mapping[str, TextMetric],
    *,
    draws: int = DEFAULT_DRAWS,
    seed: int = 1,
    confidence: float = 0.95,
) -> list[SystemScore]:
    """Every system by every metric, each against the first system."""
    counts = [
        {name: metric.statistics(outputs, references) for name, metric in metrics.items()}
        for outputs in systems.values()
    ]
    # All metrics stand side by side, so that segments are drawn once for all of them.
    widths = np.cumsum([counts[0][name].rows.shape[1] for name in metrics])[:-1]
    wholes = [np.concatenate([counted.rows for counted in mine.values()], axis=1) for mine in counts]

    def parts(sums: FloatArray) -> dict[str, FloatArray]:
        return dict(zip(metrics, np.split(sums, widths, axis=1), strict=True))

    drawn = [parts(bootstrap_sums(whole, draws, seed)) for whole in wholes]
    moved = [parts(exchange_sums(wholes[0] - whole, draws, seed)) for whole in wholes]
    standings = []
    for name, metric in metrics.items():
        baseline = metric.combine(drawn[0][name])
        for place, system in enumerate(systems):
            mine, again = counts[place][name], metric.combine(drawn[place][name])
            score, versus = metric.score(mine), None
            if place:
                difference = score - metric.score(counts[0][name])
                versus = BaselineComparison(
                    difference,
                    difference > 0 if metric.higher_is_better else difference < 0,
                    paired_bootstrap(again, baseline, difference),
                    _randomised(metric, mine.rows, counts[0][name].rows, moved[place][name]),
                )
            standings.append(SystemScore(name, system, score, interval(again, confidence), versus, mine.signature))
    return standings
