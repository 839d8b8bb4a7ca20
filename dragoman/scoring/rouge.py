"""ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004), for summaries: F₁ of each segment, and their mean.

Words are lower-case runs of letters and digits of any script, unstemmed. Of several references the one with the best
F₁ counts. ROUGE-L takes the longest common subsequence of the whole texts, not sentence by sentence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from dragoman.scoring.metric import Numbers, References, Statistics, as_rows, ratio, signature

_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """Lower-case words without punctuation."""
    return _WORD.findall(text.lower())


def common_subsequence(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """The length of the longest sequence that stands, with gaps, in both; bit-parallel (Hyyrö 2004)."""
    places: dict[Hashable, int] = {}
    for index, symbol in enumerate(left):
        places[symbol] = places.get(symbol, 0) | 1 << index
    mask = (1 << len(left)) - 1
    gaps = mask
    for symbol in right:
        hits = gaps & places.get(symbol, 0)
        gaps = ((gaps + hits) | (gaps - hits)) & mask
    return len(left) - gaps.bit_count()


def ngram_overlap(order: int) -> Callable[[list[str], list[str]], tuple[int, int, int]]:
    """Counts matches of n-grams of one order, and how many there are on each side."""

    def overlap(left: list[str], right: list[str]) -> tuple[int, int, int]:
        one, other = (
            Counter(tuple(tokens[place : place + order]) for place in range(len(tokens) - order + 1))
            for tokens in (left, right)
        )
        return (one & other).total(), one.total(), other.total()

    return overlap


def subsequence_overlap(left: list[str], right: list[str]) -> tuple[int, int, int]:
    """The longest common subsequence, and the length of each side."""
    return common_subsequence(left, right), len(left), len(right)


def rouge_counter(
    overlap: Callable[[list[str], list[str]], tuple[int, int, int]],
) -> Callable[[Sequence[str], References], Statistics]:
    """Counts segments by an overlap: the F₁ of each, and 1."""

    def best(hypothesis: str, texts: Sequence[str]) -> float:
        written, scores = words(hypothesis), []
        for text in texts:
            matches, one, other = overlap(written, words(text))
            scores.append(2 * matches / (one + other) if matches else 0.0)
        return max(scores)

    def count(hypotheses: Sequence[str], references: References) -> Statistics:
        rows = [(best(hypothesis, texts), 1.0) for hypothesis, texts in zip(hypotheses, references, strict=True)]
        return Statistics(as_rows(rows), signature(references, case="lc", tok="alphanumeric", stem="no"))

    return count


def combine_rouge(sums: Numbers) -> Numbers:
    """The mean over segments."""
    return ratio(sums[..., 0], sums[..., 1])
