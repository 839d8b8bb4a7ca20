"""Features at the end of a text, such as the tags of inflection: "sehen V;PST;3;SG" is a lemma and four features.

`marks` describes the layout: its first character stands before the features, its last one between two of them (" ;").
A feature keeps the mark before it, so the parts of a text joined are the text, and " V" is not the letter "V".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

LAYOUTS = (" ;", " |", " ,", " +", "#;", "#|", "++")  # that `find_features` looks for
TOLERATED = 0.01  # share of sources without features, such as stray lines


def split_features(text: str, marks: str) -> tuple[str, list[str]]:
    """The text before the features, and the features, each with the mark before it."""
    first, between = marks[0], marks[-1]
    start = text.find(first) if first == between else text.rfind(first)
    if start < 0:
        return text, []
    features = re.split(f"(?={re.escape(between)})", text[start + 1 :])
    return text[:start], [first + features[0], *features[1:]]


def find_features(sources: Iterable[str]) -> str:
    """The marks of the features that (nearly) all sources have at their end; "" if they have none.

    There must be few different features, used again and again, and most sources must have more than one.
    """
    texts = list(sources)
    return next((marks for marks in LAYOUTS if texts and _fits(texts, marks)), "")


def _fits(texts: list[str], marks: str) -> bool:
    counts: Counter[str] = Counter()
    several = misfits = 0
    for text in texts:
        stem, features = split_features(text, marks)
        fits = stem and features and marks[-1] not in stem and all(re.fullmatch(r"\S+", one[1:]) for one in features)
        if not fits:
            misfits += 1
            if misfits > TOLERATED * len(texts):
                return False
            continue
        several += len(features) > 1
        counts.update(features)
    return several * 2 > len(texts) and counts.total() >= 3 * len(counts)
