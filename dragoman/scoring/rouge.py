"""ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004): the mean over segments of F₁.

Words are lower-case runs of letters and digits of any script, without stemming. Of several references the one with the
best F₁ counts. ROUGE-L takes the longest common subsequence of whole texts, not of sentences.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from dragoman.scoring.metric import References, Statistics, TextMetric, as_rows, mean_score, signature

_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def ngram_overlap(order: int) -> Callable[[list[str], list[str]], tuple[int, int, int]]:
    """A function that counts matching n-grams of one order, and the n-grams of each side."""

    def overlap(left: list[str], right: list[str]) -> tuple[int, int, int]:
        ngrams, others = (
            Counter(tuple(tokens[start : start + order]) for start in range(len(tokens) - order + 1))
            for tokens in (left, right)
        )
        return (ngrams & others).total(), ngrams.total(), others.total()

    return overlap


def subsequence_overlap(left: list[str], right: list[str]) -> tuple[int, int, int]:
    from rapidfuzz.distance import LCSseq

    return LCSseq.similarity(left, right), len(left), len(right)


def rouge_counter(
    overlap: Callable[[list[str], list[str]], tuple[int, int, int]],
) -> Callable[[Sequence[str], References], Statistics]:
    """The counting function of a ROUGE metric: for each segment its F₁, and 1."""

    def best(hypothesis: str, texts: Sequence[str]) -> float:
        tokens, scores = words(hypothesis), []
        for text in texts:
            matches, in_hypothesis, in_reference = overlap(tokens, words(text))
            scores.append(2 * matches / (in_hypothesis + in_reference) if matches else 0.0)
        return max(scores)

    def count(hypotheses: Sequence[str], references: References) -> Statistics:
        rows = [(best(hypothesis, texts), 1.0) for hypothesis, texts in zip(hypotheses, references, strict=True)]
        return Statistics(as_rows(rows), signature(references, case="lc", tok="alphanumeric", stem="no"))

    return count


METRICS = tuple(
    TextMetric(name, name.upper(), about, count=rouge_counter(overlap), combine=mean_score)
    for name, about, overlap in (
        ("rouge-1", "F₁ of words, for summaries", ngram_overlap(1)),
        ("rouge-2", "F₁ of word 2-grams, for summaries", ngram_overlap(2)),
        ("rouge-l", "F₁ by longest common subsequence, for summaries", subsequence_overlap),
    )
)
