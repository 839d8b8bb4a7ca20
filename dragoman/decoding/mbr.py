"""Minimum Bayes risk: of sampled outputs the one that costs least if the truth were another sample.

Kumar & Byrne 2004; with samples in place of an n-best list Eikema & Aziz 2022, eq. 4. The most probable output need
not be typical of what the model believes; this one is, under the metric it will be judged by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from dragoman.config.settings import Range, setting
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.methods import Request
from dragoman.decoding.sampling import Sampling, draw
from dragoman.errors import ConfigError, hint
from dragoman.scoring.registry import segment_cost_metrics


@dataclass(frozen=True)
class MinimumBayesRisk:
    """The output with the smallest expected cost under a metric."""

    kind: ClassVar[str] = "minimum-bayes-risk"
    samples: Annotated[int, Range(2, None)] = setting(32, help="outputs drawn per source, candidates and truths alike")
    metric: str = setting("chrf", help=f"what a difference costs: {', '.join(segment_cost_metrics())}")
    sampling: Sampling = setting(Sampling(), help="how they are drawn")

    def __post_init__(self) -> None:
        if self.metric not in (metrics := segment_cost_metrics()):
            raise ConfigError(f"metric: found {self.metric!r}. {hint(self.metric, metrics)}")

    def search(self, request: Request) -> list[list[Hypothesis]]:
        """The samples of every source, each text once, by rising expected cost; `normalised` is minus that cost."""
        drawn = draw(request, self.sampling, self.samples, "minimum Bayes risk")
        return [self.ranked(samples, request)[: request.n_best] for samples in drawn]

    def ranked(self, samples: Sequence[Hypothesis], request: Request) -> list[Hypothesis]:
        """The samples of one source; of several spellings of one text the most probable stands for it."""
        texts = [request.text(one.tokens) for one in samples]
        counts = Counter(texts)
        spelled: dict[str, Hypothesis] = {}
        for text, one in zip(texts, samples, strict=True):
            if text not in spelled or one.score > spelled[text].score:
                spelled[text] = one
        risks = expected_costs(list(spelled), counts, self.metric)
        priced = [one._replace(normalised=-risk) for one, risk in zip(spelled.values(), risks, strict=True)]
        return sorted(priced, key=lambda one: (-one.normalised, -one.score, one.tokens))


def expected_costs(candidates: Sequence[str], truths: Counter[str], metric: str) -> list[float]:
    """The mean cost of each candidate over the truths, each as heavy as its count."""
    weights = np.array(list(truths.values())) / truths.total()
    costs = segment_cost_metrics()[metric].pairwise_costs(candidates, list(truths))
    found: list[float] = (costs @ weights).tolist()
    return found
