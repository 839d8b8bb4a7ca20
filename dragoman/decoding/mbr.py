"""Minimum Bayes risk decoding (Kumar and Byrne 2004) over samples (Eikema and Aziz 2022, eq. 4).

Of the sampled outputs it returns the one with the lowest expected cost if the truth were another sample. The most
probable output need not be typical of the model's distribution; this one is, under the metric that judges it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from dragoman.base import check_interrupted, track
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.method import Request
from dragoman.decoding.method_settings import MinimumBayesRisk as MinimumBayesRisk
from dragoman.decoding.sampling import draw_samples
from dragoman.scoring import segment_cost_metrics

MAX_PAIRS = 1 << 18  # outputs compared at once


def minimise_risk(request: Request, settings: MinimumBayesRisk) -> list[list[Hypothesis]]:
    drawn = draw_samples(request, settings, settings.samples, "minimum Bayes risk")
    return [rank(samples, request, settings.metric)[: request.n_best] for samples in drawn]


def rank(samples: Sequence[Hypothesis], request: Request, metric: str) -> list[Hypothesis]:
    """The samples of one source; of several tokenizations of one text the most probable represents it."""
    texts = [request.text(sample.tokens) for sample in samples]
    counts = Counter(texts)
    best: dict[str, Hypothesis] = {}
    for text, sample in zip(texts, samples, strict=True):
        if text not in best or sample.score > best[text].score:
            best[text] = sample
    costs = expected_costs(list(best), counts, metric)
    ranked = [sample._replace(normalised=-cost) for sample, cost in zip(best.values(), costs, strict=True)]
    return sorted(ranked, key=lambda sample: (-sample.normalised, -sample.score, sample.tokens))


def expected_costs(candidates: Sequence[str], references: Counter[str], metric: str) -> list[float]:
    """The mean cost of each candidate over the references, weighted by their counts."""
    weights, texts = np.array(list(references.values())) / references.total(), list(references)
    size = max(1, MAX_PAIRS // max(1, len(texts)))  # candidates at once, which bounds the memory
    done = track(f"{len(texts):,} samples compared with each other", len(candidates))
    expected: list[float] = []
    for first in range(0, len(candidates), size):
        check_interrupted()
        block = candidates[first : first + size]
        expected += (segment_cost_metrics()[metric].pairwise_costs(block, texts) @ weights).tolist()
        done(len(block))
    return expected
