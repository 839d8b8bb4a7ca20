"""Overlap of n-grams: ROUGE for summaries, CIDEr-D for captions.

ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004) are means over segments of F₁. Words are lower-case runs of letters and digits
of any script, without stemming. Of several references the one with the best F₁ counts. ROUGE-L takes the longest common
subsequence of whole texts, not of sentences.

CIDEr-D (Vedantam, Zitnick and Parikh 2015, section 6) compares with several references. A text is a vector of tf-idf
weights for each n from 1 to 4. The idf comes from the references of the scored set: log(images / images whose
references have the n-gram). The score of hypothesis h against reference r is the mean over n of

    10 · exp(−(|h| − |r|)² / 2σ²) · min(h, r) · r / (‖h‖ ‖r‖),  σ = 6,

then averaged over references and over segments. The statistics are the scores of segments, so subsets and confidence
intervals keep the idf of the whole set. A single segment cannot be scored alone. Words are lower-case, without
punctuation and without stemming, as in the coco-caption code.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from dragoman.scoring.edit import common_length
from dragoman.scoring.metric import References, Statistics, TextMetric, as_rows, mean_score, signature

MAX_ORDER, SIGMA, SCALE = 4, 6.0, 10.0  # of CIDEr
ORDERS = range(1, MAX_ORDER + 1)
ROUGE_WORD = re.compile(r"[^\W_]+")
CIDER_WORD = re.compile(r"\w+(?:['’]\w+)*")
Ngram = tuple[str, ...]


def ngrams(tokens: Sequence[str], orders: Iterable[int]) -> Counter[Ngram]:
    """The number of occurrences of every n-gram of these orders."""
    places = ((start, order) for order in orders for start in range(len(tokens) - order + 1))
    return Counter(tuple(tokens[start : start + order]) for start, order in places)


# --- ROUGE


def ngram_overlap(order: int) -> Callable[[list[str], list[str]], tuple[int, int, int]]:
    """A function that counts matching n-grams of one order, and the n-grams of each side."""

    def overlap(left: list[str], right: list[str]) -> tuple[int, int, int]:
        ours, theirs = ngrams(left, (order,)), ngrams(right, (order,))
        return (ours & theirs).total(), ours.total(), theirs.total()

    return overlap


def subsequence_overlap(left: list[str], right: list[str]) -> tuple[int, int, int]:
    return common_length(left, right), len(left), len(right)


def rouge_counter(
    overlap: Callable[[list[str], list[str]], tuple[int, int, int]],
) -> Callable[[Sequence[str], References], Statistics]:
    """The counting function of a ROUGE metric: for each segment its F₁, and 1."""

    def best(hypothesis: str, texts: Sequence[str]) -> float:
        tokens, scores = ROUGE_WORD.findall(hypothesis.lower()), []
        for text in texts:
            matches, in_hypothesis, in_reference = overlap(tokens, ROUGE_WORD.findall(text.lower()))
            scores.append(2 * matches / (in_hypothesis + in_reference) if matches else 0.0)
        return max(scores)

    def count(hypotheses: Sequence[str], references: References) -> Statistics:
        rows = [(best(hypothesis, texts), 1.0) for hypothesis, texts in zip(hypotheses, references, strict=True)]
        return Statistics(as_rows(rows), signature(references, case="lc", tok="alphanumeric", stem="no"))

    return count


# --- CIDEr


def tf_idf(counts: Mapping[Ngram, int], idf: Mapping[Ngram, float]) -> tuple[dict[Ngram, float], list[float]]:
    """The weight of every n-gram, where tf is the plain count, and the norm of the vector of each order."""
    vector = {ngram: count * idf[ngram] for ngram, count in counts.items()}
    squares = [0.0] * MAX_ORDER
    for ngram, value in vector.items():
        squares[len(ngram) - 1] += value**2
    return vector, [math.sqrt(square) for square in squares]


def count_cider(hypotheses: Sequence[str], references: References) -> Statistics:
    """For each segment its score, and 1."""
    reference_tokens = [[CIDER_WORD.findall(text.lower()) for text in texts] for texts in references]
    reference_ngrams = [[ngrams(tokens, ORDERS) for tokens in texts] for texts in reference_tokens]
    images = Counter(ngram for texts in reference_ngrams for ngram in {ngram for counts in texts for ngram in counts})
    log_images = math.log(max(1, len(references)))
    rows = []
    for hypothesis, texts, counted in zip(hypotheses, reference_tokens, reference_ngrams, strict=True):
        tokens = CIDER_WORD.findall(hypothesis.lower())
        own = ngrams(tokens, ORDERS)
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
    *(
        TextMetric(name, name.upper(), about, count=rouge_counter(overlap), combine=mean_score)
        for name, about, overlap in (
            ("rouge-1", "F₁ of words, for summaries", ngram_overlap(1)),
            ("rouge-2", "F₁ of word 2-grams, for summaries", ngram_overlap(2)),
            ("rouge-l", "F₁ by longest common subsequence, for summaries", subsequence_overlap),
        )
    ),
)
