"""METEOR (FIELD I3; Banerjee and Lavie 2005), its exact and stem modules.

What is here: the formula of 2005 (recall weighs nine times precision, a penalty for scattered matches) over sums of
the whole corpus, words matched when they are equal or have one Porter stem, and, of all alignments with the most
matches, one with the fewest chunks and then the least crossing (as in Denkowski and Lavie 2014). What is not: WordNet
synonyms, paraphrase tables, function words and weights tuned to human judgements. The stemmer is English; in other
languages all but plain equality is chance.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dragoman.scoring.metric import Numbers, References, Statistics, as_rows, ratio, signature
from dragoman.scoring.stemming import stem

BEAM = 40  # partial alignments kept: only words that stand in a text twice leave a choice
_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """Stems of lower-case words; a punctuation mark is a word of its own."""
    return [stem(word) for word in _WORD.findall(text.lower())]


class Matching(NamedTuple):
    """How many words are matched, and in how many runs that stand together in both texts."""

    matches: int
    chunks: int


def match(hypothesis: Sequence[str], reference: Sequence[str]) -> Matching:
    """The alignment with the most matches and, of those, the fewest chunks."""
    places: dict[str, list[int]] = {}
    for place, word in enumerate(reference):
        places.setdefault(word, []).append(place)
    counts = Counter(hypothesis)
    matches = sum(min(count, len(places.get(word, ()))) for word, count in counts.items())
    surplus = {word: max(0, count - len(places.get(word, ()))) for word, count in counts.items()}
    masks = {word: sum(1 << place for place in places.get(word, ())) for word in counts}

    # A state: reference places used (bits) and the place matched by the word before, or none. Its price: chunks, then
    # the distance that the matches are moved by.
    states: dict[tuple[int, int | None], tuple[int, int]] = {(0, None): (0, 0)}
    seen: Counter[str] = Counter()
    for position, word in enumerate(hypothesis):
        following: dict[tuple[int, int | None], tuple[int, int]] = {}
        for (used, before), (chunks, moved) in states.items():
            options: list[tuple[tuple[int, int | None], tuple[int, int]]] = []
            if seen[word] - (used & masks[word]).bit_count() < surplus[word]:
                options.append(((used, None), (chunks, moved)))
            for place in places.get(word, ()):
                if not used >> place & 1:
                    fresh = before is None or place != before + 1
                    options.append(((used | 1 << place, place), (chunks + fresh, moved + abs(place - position))))
            for state, price in options:
                if state not in following or price < following[state]:
                    following[state] = price
        seen[word] += 1
        if len(following) > BEAM:
            following = dict(sorted(following.items(), key=lambda item: item[1])[:BEAM])
        states = following
    return Matching(matches, min(chunks for chunks, _ in states.values()))


def count_meteor(hypotheses: Sequence[str], references: References) -> Statistics:
    """Matches, chunks, words written and words expected, against the reference that scores best."""
    rows = []
    for hypothesis, texts in zip(hypotheses, references, strict=True):
        written = words(hypothesis)
        choices = []
        for text in texts:
            expected = words(text)
            choices.append([*match(written, expected), len(written), len(expected)])
        best = int(np.argmax(combine_meteor(as_rows(choices)))) if len(choices) > 1 else 0
        rows.append(choices[best])
    return Statistics(as_rows(rows), signature(references, case="lc", tok="words", match="exact+porter"))


def combine_meteor(sums: Numbers) -> Numbers:
    """Fmean · (1 − penalty) with Fmean = 10PR / (R + 9P) and penalty = ½ (chunks / matches)³."""
    matches, chunks, written, expected = np.moveaxis(sums, -1, 0)
    precision, recall = ratio(matches, written), ratio(matches, expected)
    mean = ratio(10 * precision * recall, recall + 9 * precision)
    return np.asarray(mean * (1 - 0.5 * ratio(chunks, matches) ** 3))
