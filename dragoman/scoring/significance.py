"""Bootstrap confidence intervals and significance tests for every text metric.

A draw resamples segments, or exchanges them between two systems, and combines the new sums of their statistics. All
draws together are one matrix product, whatever the metric. Draws follow from the seed, so all systems and metrics see
the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dragoman.base import track
from dragoman.scoring.metric import FloatArray, References, Statistics, TextMetric

DEFAULT_DRAWS = 1000
BLOCK = 1 << 22  # numbers in memory at once
ROUNDING = 1e-9  # tolerance for sums in another order, so that an equal difference counts as equal


class Interval(NamedTuple):
    """A confidence interval of a score."""

    low: float
    high: float


def _blocks(draws: int, segments: int) -> Iterator[int]:
    size = max(1, BLOCK // max(1, segments))
    done = track(f"{draws:,} draws from {segments:,} segments", draws)
    for first in range(0, draws, size):
        yield min(size, draws - first)
        done(min(size, draws - first))


def bootstrap_sums(rows: FloatArray, draws: int = DEFAULT_DRAWS, seed: int = 1) -> FloatArray:
    """Summed statistics (draws, K) of corpora drawn with replacement from these segments (S, K)."""
    generator, segments = np.random.default_rng(seed), len(rows)
    sums = []
    for corpora in _blocks(draws, segments):
        # One bincount over all corpora is far faster than drawing multinomial counts.
        indices = generator.integers(0, segments, (corpora, segments)) + segments * np.arange(corpora)[:, None]
        weights = np.bincount(indices.ravel(), minlength=corpora * segments).reshape(corpora, segments)
        sums.append(weights.astype(np.float64) @ rows)
    return np.concatenate(sums)


def exchange_sums(difference: FloatArray, draws: int = DEFAULT_DRAWS, seed: int = 1) -> FloatArray:
    """Sums (draws, K) over the segments exchanged between two systems, each with probability ½, of their difference."""
    generator, segments = np.random.default_rng(seed), len(difference)
    return np.concatenate(
        [
            generator.integers(0, 2, (corpora, segments), dtype=np.int8).astype(np.float64) @ difference
            for corpora in _blocks(draws, segments)
        ]
    )


def bootstrap(metric: TextMetric, statistics: Statistics, draws: int = DEFAULT_DRAWS, seed: int = 1) -> FloatArray:
    """The scores (draws,) of corpora drawn with replacement from the segments of this one."""
    return metric.combine(bootstrap_sums(statistics.rows, draws, seed))


def interval(scores: FloatArray, confidence: float = 0.95) -> Interval:
    tail = (1 - confidence) / 2
    low, high = np.quantile(scores, [tail, 1 - tail])
    return Interval(float(low), float(high))


def intervals(
    metrics: Mapping[str, TextMetric], counts: Mapping[str, Statistics], draws: int = DEFAULT_DRAWS, seed: int = 1
) -> dict[str, list[float]]:
    """The 95 % confidence interval of every metric, for JSON."""
    return {name: list(interval(bootstrap(metric, counts[name], draws, seed))) for name, metric in metrics.items()}


def _p_value(differences: FloatArray, observed: float) -> float:
    """The share of draws whose difference is at least the observed one, which itself counts as one draw."""
    scale = ROUNDING * max(1.0, abs(observed))
    return (1 + int((np.abs(differences) >= abs(observed) - scale).sum())) / (len(differences) + 1)


def paired_bootstrap(system: FloatArray, baseline: FloatArray, observed: float) -> float:
    """The two-sided p-value of two systems from their scores on the same drawn corpora.

    Koehn (2004) with differences centred at zero (Riezler and Maxwell 2005): how often chance alone gives a difference
    as large as the observed one. sacreBLEU centres absolute differences, which leaves one tail, and their mean is
    larger than that of the differences, so its p-values are 0.35 to 0.5 of these.
    """
    differences = system - baseline
    return _p_value(differences - differences.mean(), observed)


def approximate_randomisation(
    metric: TextMetric, system: FloatArray, baseline: FloatArray, exchanged: FloatArray
) -> float:
    """The two-sided p-value of two systems when the outputs of random segments are exchanged (Noreen 1989).

    `exchanged` are `exchange_sums` of the difference baseline − system.
    """
    left, right = system.sum(axis=0), baseline.sum(axis=0)
    differences = metric.combine(left + exchanged) - metric.combine(right - exchanged)
    return _p_value(differences, float(metric.combine(left) - metric.combine(right)))


class LossComparison(NamedTuple):
    """The mean losses of two systems over the same tokens."""

    before: float
    after: float
    p: float  # two-sided, by paired bootstrap
    rise: float  # with a confidence of 95 % the loss has risen by this or more; negative where it may have fallen


def compare_losses(before: FloatArray, after: FloatArray, tokens: FloatArray) -> LossComparison:
    """Compare the losses of two systems, given as sums over the tokens of each segment."""
    rows = np.stack([before, after, tokens], axis=1)
    first, second, size = rows.sum(axis=0)
    drawn = bootstrap_sums(rows)
    losses, others = drawn[:, 0] / drawn[:, 2], drawn[:, 1] / drawn[:, 2]
    p = paired_bootstrap(others, losses, (second - first) / size)
    return LossComparison(first / size, second / size, p, float(np.quantile(others - losses, 0.05)))


class BaselineComparison(NamedTuple):
    """A system compared with the baseline."""

    difference: float
    better: bool
    bootstrap: float  # p-value by paired bootstrap, not corrected for multiple comparisons
    randomisation: float  # p-value by approximate randomisation, not corrected either


class SystemScore(NamedTuple):
    """The score of one system by one metric; the baseline itself has no comparison."""

    metric: str
    system: str
    score: float
    interval: Interval
    versus: BaselineComparison | None
    signature: str

    def as_dict(self) -> dict[str, Any]:
        versus = self.versus._asdict() if self.versus else None
        return self._asdict() | {"interval": list(self.interval), "versus": versus}


def compare_to_baseline(
    systems: Mapping[str, Sequence[str]],
    references: References,
    metrics: Mapping[str, TextMetric],
    *,
    sources: Sequence[str] | None = None,
    draws: int = DEFAULT_DRAWS,
    seed: int = 1,
) -> list[SystemScore]:
    """The scores of every system by every metric, each compared with the first system, the baseline."""
    counts = [
        {name: metric.statistics(outputs, references, sources) for name, metric in metrics.items()}
        for outputs in systems.values()
    ]
    # The statistics of all metrics are columns of one matrix, so that segments are drawn once for all metrics.
    widths = np.cumsum([counts[0][name].rows.shape[1] for name in metrics])[:-1]
    wholes = [np.concatenate([counted.rows for counted in own.values()], axis=1) for own in counts]

    def parts(sums: FloatArray) -> dict[str, FloatArray]:
        return dict(zip(metrics, np.split(sums, widths, axis=1), strict=True))

    resampled = [parts(bootstrap_sums(whole, draws, seed)) for whole in wholes]
    exchanged = [parts(exchange_sums(wholes[0] - whole, draws, seed)) for whole in wholes]
    scores = []
    for name, metric in metrics.items():
        baseline = metric.combine(resampled[0][name])
        for number, system in enumerate(systems):
            own, own_draws = counts[number][name], metric.combine(resampled[number][name])
            score, versus = metric.score(own), None
            if number:
                difference = score - metric.score(counts[0][name])
                versus = BaselineComparison(
                    difference,
                    difference > 0 if metric.higher_is_better else difference < 0,
                    paired_bootstrap(own_draws, baseline, difference),
                    approximate_randomisation(metric, own.rows, counts[0][name].rows, exchanged[number][name]),
                )
            scores.append(SystemScore(name, system, score, interval(own_draws), versus, own.signature))
    return scores
