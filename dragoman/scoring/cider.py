"""CIDEr-D (Vedantam, Zitnick and Parikh 2015, section 6): captions against several references.

A text is a vector of tf-idf weights for each n from 1 to 4. The idf comes from the references of the scored set:
log(images / images whose references have the n-gram). The score of hypothesis h against reference r is the mean over
n of

    10 · exp(−(|h| − |r|)² / 2σ²) · min(h, r) · r / (‖h‖ ‖r‖),  σ = 6,

then averaged over references and over segments. The statistics are the scores of segments, so subsets and confidence
intervals keep the idf of the whole set. A single segment cannot be scored alone. Words are lower-case, without
punctuation and without stemming, as in the coco-caption code.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from dragoman.scoring.metric import References, Statistics, TextMetric, as_rows, mean_score, signature

MAX_ORDER, SIGMA, SCALE = 4, 6.0, 10.0
_WORD = re.compile(r"\w+(?:['’]\w+)*")
Ngram = tuple[str, ...]


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def ngrams(tokens: Sequence[str]) -> Counter[Ngram]:
    return Counter(
        tuple(tokens[start : start + order])
        for order in range(1, MAX_ORDER + 1)
        for start in range(len(tokens) - order + 1)
    )


def tf_idf(counts: Mapping[Ngram, int], idf: Mapping[Ngram, float]) -> tuple[dict[Ngram, float], list[float]]:
    """The weight of every n-gram, where tf is the plain count, and the norm of the vector of each order."""
    vector = {ngram: count * idf[ngram] for ngram, count in counts.items()}
    squares = [0.0] * MAX_ORDER
    for ngram, value in vector.items():
        squares[len(ngram) - 1] += value**2
    return vector, [math.sqrt(square) for square in squares]


def count_cider(hypotheses: Sequence[str], references: References) -> Statistics:
    """For each segment its score, and 1."""
    reference_tokens = [[words(text) for text in texts] for texts in references]
    reference_ngrams = [[ngrams(tokens) for tokens in texts] for texts in reference_tokens]
    images = Counter(ngram for texts in reference_ngrams for ngram in {ngram for counts in texts for ngram in counts})
    log_images = math.log(max(1, len(references)))
    rows = []
    for hypothesis, texts, counted in zip(hypotheses, reference_tokens, reference_ngrams, strict=True):
        tokens = words(hypothesis)
        own = ngrams(tokens)
        idf = {ngram: log_images - math.log(max(1, images[ngram])) for counts in (own, *counted) for ngram in counts}
        vector, norms = tf_idf(own, idf)
        total = 0.0
        for reference, counts in zip(texts, counted, strict=True):
            other, other_norms = tf_idf(counts, idf)
            products = [0.0] * MAX_ORDER
            for ngram, value in vector.items():
                if ngram in other:
                    products[len(ngram) - 1] += min(value, other[ngram]) * other[ngram]
            length_penalty = math.exp(-((len(tokens) - len(reference)) ** 2) / (2 * SIGMA**2))
            total += length_penalty * sum(
                product / (norms[n] * other_norms[n]) if norms[n] and other_norms[n] else 0.0
                for n, product in enumerate(products)
            )
        rows.append([SCALE * total / MAX_ORDER / len(texts), 1.0])
    return Statistics(as_rows(rows), signature(references, case="lc", tok="words", idf="references", sigma="6"))


METRICS = (
    TextMetric(
        "cider",
        "CIDEr-D",
        "tf-idf similarity of n-grams, 0 to 10, for captions",
        percent=False,
        decimals=".3f",
        count=count_cider,
        combine=mean_score,
        has_segment_costs=False,  # its idf comes from the whole set of references
    ),
)
