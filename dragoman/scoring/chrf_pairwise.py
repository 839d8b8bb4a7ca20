"""chrF of every hypothesis against every reference, with the n-grams of each text counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from dragoman.scoring.metric import FloatArray, ratio

MAX_ORDER, BETA = 6, 2  # as sacreBLEU's chrF2


def pairwise_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> FloatArray:
    """1 − chrF of each pair: (H, R). sacreBLEU's sentence_score would count the n-grams of a text for every pair."""
    precision = np.zeros((len(hypotheses), len(references)))
    recall, orders = np.zeros_like(precision), np.zeros_like(precision)
    for order in range(1, MAX_ORDER + 1):
        index: dict[str, int] = {}
        counters = [_count_ngrams(texts, order, index) for texts in (hypotheses, references)]
        left, right = (_count_matrix(rows, len(index)) for rows in counters)  # (H, n-grams), (R, n-grams)
        matches = np.array([np.minimum(row, right).sum(1) for row in left]).reshape(precision.shape)
        in_hypothesis, in_reference = left.sum(1)[:, None], right.sum(1)[None]
        both = (in_hypothesis > 0) & (in_reference > 0)  # an order counts where both texts are long enough for it
        precision += np.where(both, matches / np.maximum(in_hypothesis, 1), 0.0)
        recall += np.where(both, matches / np.maximum(in_reference, 1), 0.0)
        orders += both
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    weight = BETA**2
    return np.asarray(1.0 - ratio((1 + weight) * precision * recall, weight * precision + recall))


def _count_ngrams(texts: Sequence[str], order: int, index: dict[str, int]) -> list[Counter[int]]:
    """The n-grams of each text, spaces removed; `index` numbers the n-grams and grows."""
    rows = []
    for text in texts:
        text = "".join(text.split())
        ngrams = (text[start : start + order] for start in range(len(text) - order + 1))
        rows.append(Counter(index.setdefault(ngram, len(index)) for ngram in ngrams))
    return rows


def _count_matrix(rows: Sequence[Counter[int]], width: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    matrix = np.zeros((len(rows), width), dtype=np.int64)
    for number, row in enumerate(rows):
        matrix[number, list(row)] = list(row.values())
    return matrix
