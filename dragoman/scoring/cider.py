"""CIDEr-D (FIELD I3; Vedantam, Zitnick and Parikh 2015, section 6): captions against several references.

A text is a vector of tf-idf weights for each n of 1 to 4, where idf is learned from the references that are scored
against: log(images / images whose references have the n-gram). Of hypothesis h and reference r the value is the mean
over n of

    10 · exp(−(|h| − |r|)² / 2σ²) · min(h, r) · r / (‖h‖ ‖r‖),  σ = 6,

the mean over references and over segments. Since idf depends on the whole set, a part of it has other values than in
the whole; what is counted here are the values of segments, so that cuts and intervals are those of a fixed idf. Words
are lower case without punctuation, and are not stemmed, as the coco-caption code has it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from dragoman.scoring.metric import Numbers, References, Statistics, as_rows, ratio, signature

ORDERS, SIGMA, SCALE = 4, 6.0, 10.0
_WORD = re.compile(r"\w+(?:['’]\w+)*")
Gram = tuple[str, ...]


def words(text: str) -> list[str]:
    """Lower-case words."""
    return _WORD.findall(text.lower())


def grams(text: Sequence[str]) -> Counter[Gram]:
    """How often each run of 1 to 4 words comes."""
    return Counter(
        tuple(text[place : place + size]) for size in range(1, ORDERS + 1) for place in range(len(text) - size + 1)
    )


def weighed(counts: Mapping[Gram, int], weights: Mapping[Gram, float]) -> tuple[dict[Gram, float], list[float]]:
    """tf-idf of every n-gram, tf being the plain count, and the norm for each n."""
    vector = {gram: count * weights[gram] for gram, count in counts.items()}
    squares = [0.0] * ORDERS
    for gram, value in vector.items():
        squares[len(gram) - 1] += value**2
    return vector, [math.sqrt(square) for square in squares]


def count_cider(hypotheses: Sequence[str], references: References) -> Statistics:
    """The value of every segment, and a one."""
    texts = [[words(text) for text in several] for several in references]
    counted = [[grams(text) for text in several] for several in texts]
    images = Counter(gram for several in counted for gram in {gram for one in several for gram in one})
    whole = math.log(max(1, len(references)))
    written = [words(text) for text in hypotheses]
    rows = []
    for text, several, counts in zip(written, texts, counted, strict=True):
        own = grams(text)
        known = {gram: whole - math.log(max(1, images[gram])) for one in (own, *counts) for gram in one}
        vector, norms = weighed(own, known)
        total = 0.0
        for reference, count in zip(several, counts, strict=True):
            other, lengths = weighed(count, known)
            shared = [0.0] * ORDERS
            for gram, value in vector.items():
                if gram in other:
                    shared[len(gram) - 1] += min(value, other[gram]) * other[gram]
            apart = math.exp(-((len(text) - len(reference)) ** 2) / (2 * SIGMA**2))
            total += apart * sum(
                part / (norms[n] * lengths[n]) if norms[n] and lengths[n] else 0.0 for n, part in enumerate(shared)
            )
        rows.append([SCALE * total / ORDERS / len(several), 1.0])
    return Statistics(as_rows(rows), signature(references, case="lc", tok="words", idf="references", sigma="6"))


def combine_cider(sums: Numbers) -> Numbers:
    """The mean of the segments."""
    total, count = np.moveaxis(sums, -1, 0)
    return ratio(total, count)
