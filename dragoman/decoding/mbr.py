"""Minimum Bayes risk decoding (Kumar and Byrne 2004) over samples (Eikema and Aziz 2022, eq. 4).

Of the sampled outputs it returns the one with the lowest expected cost if the truth were another sample. The most
probable output need not be typical of the model's distribution; this one is, under the metric that judges it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from dragoman.base import check_interrupted, hint, track
from dragoman.base.config import Range, setting
from dragoman.decoding.config import MAX_SAMPLES
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.method import Method, Request
from dragoman.decoding.sampling import TokenSampling, draw_samples
from dragoman.scoring import segment_cost_metrics

MAX_PAIRS = 1 << 18  # outputs compared at once


@dataclass(frozen=True, kw_only=True)
class MinimumBayesRisk(TokenSampling, Method):
    """The output with the lowest expected cost under a metric."""

    kind: ClassVar[str] = "mbr"
    samples: Annotated[int, Range(2, MAX_SAMPLES)] = setting(
        32, help="outputs drawn per source; they are the candidates and the pseudo-references"
    )
    metric: str = setting("chrf", help="what compares samples: chrf, bleu, wer or another metric that scores segments")

    def problems(self) -> Iterator[str]:
        if self.metric not in (metrics := segment_cost_metrics()):
            yield f"metric: found {self.metric!r}. {hint(self.metric, metrics)}"

    def hypotheses(self, n_best: int) -> int:
        return max(self.samples, n_best)

    def search(self, request: Request) -> list[list[Hypothesis]]:
        """The distinct texts of every source by rising expected cost; `normalised` is the negative cost."""
        drawn = draw_samples(request, self, self.samples, "minimum Bayes risk")
        return [self.rank(samples, request)[: request.n_best] for samples in drawn]

    def rank(self, samples: Sequence[Hypothesis], request: Request) -> list[Hypothesis]:
        """The samples of one source; of several tokenizations of one text the most probable represents it."""
        texts = [request.text(sample.tokens) for sample in samples]
        counts = Counter(texts)
        best: dict[str, Hypothesis] = {}
        for text, sample in zip(texts, samples, strict=True):
            if text not in best or sample.score > best[text].score:
                best[text] = sample
        costs = expected_costs(list(best), counts, self.metric)
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
