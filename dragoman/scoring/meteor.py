"""METEOR (Banerjee and Lavie 2005) with its exact and stem modules only: `meteor_exact_stem`.

The formula is that of 2005 (recall weighs nine times precision, a penalty for fragmented matches) over corpus sums.
Words match if they are equal or have the same Porter stem. Of all alignments with the most matches the one with the
fewest chunks counts, then the one with the least crossing (as in Denkowski and Lavie 2014). WordNet synonyms,
paraphrase tables, function words and tuned weights are missing, so scores are not those of the official METEOR 1.5.
The stemmer is English; for other languages only exact matches mean something.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from dragoman.scoring.metric import FloatArray, References, Statistics, TextMetric, as_rows, ratio, signature

BEAM = 40  # partial alignments kept; there is a choice only where a word occurs twice
_WORD = re.compile(r"\w+|[^\w\s]")


@cache
def _porter() -> Callable[[str], str]:
    import snowballstemmer

    stemmer: Callable[[str], str] = snowballstemmer.stemmer("porter").stemWord
    return stemmer


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """The Porter stem of a lower-case English word; words of one or two letters and other words are unchanged."""
    return word if len(word) < 3 or not (word.isascii() and word.isalpha()) else _porter()(word)


def stemmed_words(text: str) -> list[str]:
    """Stems of lower-case words; a punctuation mark is a word of its own."""
    return [stem(word) for word in _WORD.findall(text.lower())]


class Matching(NamedTuple):
    """Matched words, and the number of runs that are contiguous in both texts."""

    matches: int
    chunks: int


def match(hypothesis: Sequence[str], reference: Sequence[str]) -> Matching:
    """The alignment with the most matches and, of those, the fewest chunks."""
    positions: dict[str, list[int]] = {}
    for position, word in enumerate(reference):
        positions.setdefault(word, []).append(position)
    counts = Counter(hypothesis)
    matches = sum(min(count, len(positions.get(word, ()))) for word, count in counts.items())
    unmatched = {word: max(0, count - len(positions.get(word, ()))) for word, count in counts.items()}
    masks = {word: sum(1 << position for position in positions.get(word, ())) for word in counts}

    # A state is (bits of the matched reference positions, the position matched by the previous word or None). Its cost
    # is (chunks, distance by which matches are displaced).
    states: dict[tuple[int, int | None], tuple[int, int]] = {(0, None): (0, 0)}
    seen: Counter[str] = Counter()
    for index, word in enumerate(hypothesis):
        following: dict[tuple[int, int | None], tuple[int, int]] = {}
        for (used, previous), (chunks, displaced) in states.items():
            options: list[tuple[tuple[int, int | None], tuple[int, int]]] = []
            if seen[word] - (used & masks[word]).bit_count() < unmatched[word]:
                options.append(((used, None), (chunks, displaced)))
            for position in positions.get(word, ()):
                if not used >> position & 1:
                    new_chunk = previous is None or position != previous + 1
                    cost = (chunks + new_chunk, displaced + abs(position - index))
                    options.append(((used | 1 << position, position), cost))
            for state, cost in options:
                if state not in following or cost < following[state]:
                    following[state] = cost
        seen[word] += 1
        if len(following) > BEAM:
            following = dict(sorted(following.items(), key=lambda item: item[1])[:BEAM])
        states = following
    return Matching(matches, min(chunks for chunks, _ in states.values()))


def count_meteor(hypotheses: Sequence[str], references: References) -> Statistics:
    """Matches, chunks, hypothesis length and reference length, for the reference with the best score."""
    rows = []
    for hypothesis, texts in zip(hypotheses, references, strict=True):
        tokens = stemmed_words(hypothesis)
        choices = []
        for text in texts:
            reference = stemmed_words(text)
            choices.append([*match(tokens, reference), len(tokens), len(reference)])
        best = int(np.argmax(combine_meteor(as_rows(choices)))) if len(choices) > 1 else 0
        rows.append(choices[best])
    return Statistics(as_rows(rows), signature(references, case="lc", tok="words", match="exact+porter"))


def combine_meteor(sums: FloatArray) -> FloatArray:
    """Fmean · (1 − penalty) with Fmean = 10PR / (R + 9P) and penalty = ½ (chunks / matches)³."""
    matches, chunks, hypothesis_length, reference_length = np.moveaxis(sums, -1, 0)
    precision, recall = ratio(matches, hypothesis_length), ratio(matches, reference_length)
    mean = ratio(10 * precision * recall, recall + 9 * precision)
    return np.asarray(mean * (1 - 0.5 * ratio(chunks, matches) ** 3))


METRICS = (
    TextMetric(
        "meteor_exact_stem",
        "METEOR (exact+stem)",
        "word matches by form or English stem, without synonyms",
        count=count_meteor,
        combine=combine_meteor,
    ),
)
