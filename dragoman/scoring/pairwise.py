"""What every text costs against every other, with what they share computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.scoring.segments import COSTS

Costs = NDArray[np.float64]
CHRF_ORDER, CHRF_BETA = 6, 2  # as sacreBLEU's chrF2


def pairwise_costs(hypotheses: Sequence[str], references: Sequence[str], metric: str) -> Costs:
    """The cost of each hypothesis if each reference were the truth, (H, R); any metric of segments.py."""
    if metric == "chrf":
        return _chrf(hypotheses, references)
    pairs = [(hypothesis, reference) for hypothesis in hypotheses for reference in references]
    costs = COSTS[metric]([hypothesis for hypothesis, _ in pairs], [[reference] for _, reference in pairs])
    return np.array(costs, dtype=np.float64).reshape(len(hypotheses), len(references))


def _chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Costs:
    """1 − chrF: every text is cut into n-grams once, where sentence_score would do so for every pair."""
    precision = np.zeros((len(hypotheses), len(references)))
    recall, orders = np.zeros_like(precision), np.zeros_like(precision)
    for order in range(1, CHRF_ORDER + 1):
        names: dict[str, int] = {}
        counts = [_ngrams(texts, order, names) for texts in (hypotheses, references)]
        left, right = (_matrix(rows, len(names)) for rows in counts)
        shared = np.array([np.minimum(row, right).sum(1) for row in left]).reshape(precision.shape)
        written, wanted = left.sum(1)[:, None], right.sum(1)[None]
        both = (written > 0) & (wanted > 0)  # an order counts where both texts are long enough for it
        precision += np.where(both, shared / np.maximum(written, 1), 0.0)
        recall += np.where(both, shared / np.maximum(wanted, 1), 0.0)
        orders += both
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    weight = CHRF_BETA**2
    below = weight * precision + recall
    score = np.where(below > 0, (1 + weight) * precision * recall / np.where(below > 0, below, 1.0), 0.0)
    return np.asarray(1.0 - score, dtype=np.float64)


def _ngrams(texts: Sequence[str], order: int, names: dict[str, int]) -> list[Counter[int]]:
    """How often each text has each n-gram, spaces left out; `names` numbers the n-grams."""
    rows = []
    for text in texts:
        text = "".join(text.split())
        grams = (text[first : first + order] for first in range(len(text) - order + 1))
        rows.append(Counter(names.setdefault(gram, len(names)) for gram in grams))
    return rows


def _matrix(rows: Sequence[Counter[int]], width: int) -> NDArray[Any]:
    out = np.zeros((len(rows), width), dtype=np.int64)
    for place, row in enumerate(rows):
        out[place, list(row)] = list(row.values())
    return out
