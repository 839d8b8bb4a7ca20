"""Scores of parts of a test set: by length, by the rarest source word, by tag (FIELD I4)."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from dragoman.errors import DataError
from dragoman.scoring.lengths import length_buckets
from dragoman.scoring.metric import Statistics, TextMetric
from dragoman.scoring.significance import DEFAULT_DRAWS, Interval, bootstrap, interval

FREQUENCIES = (0, 1, 2, 10, 100, 1000)  # where the groups begin; each is ten times as frequent as the one before


class Bucket(NamedTuple):
    """Segments that belong together."""

    label: str
    places: list[int]


class BucketScore(NamedTuple):
    """What a group scores."""

    label: str
    segments: int
    score: float
    interval: Interval


def by_length(sources: Sequence[str], groups: int = 6) -> list[Bucket]:
    """About equally many segments a group, by the words of their sources, short ones first."""
    return [
        Bucket(f"{min_length}" if min_length == max_length else f"{min_length}–{max_length}", places)
        for min_length, max_length, places in length_buckets(sources, groups)
    ]


def by_frequency(sources: Sequence[str], training: Iterable[str]) -> list[Bucket]:
    """By how often the rarest word of each source stands in the training text, unseen ones first.

    Words are what stands between spaces, as they are written. A source without words belongs to no group.
    """
    counts: Counter[str] = Counter()
    for line in training:
        counts.update(line.split())
    labels = ["unseen", "once"]
    labels += [f"{first}–{following - 1}" for first, following in pairwise(FREQUENCIES[2:])] + [f"{FREQUENCIES[-1]}+"]
    groups = [Bucket(label, []) for label in labels]
    for place, source in enumerate(sources):
        if words := source.split():
            groups[bisect_right(FREQUENCIES, min(counts[word] for word in words)) - 1].places.append(place)
    return [group for group in groups if group.places]


def by_tag(tags: Sequence[str]) -> list[Bucket]:
    """One group for every tag, in the order of the alphabet."""
    groups: dict[str, Bucket] = {}
    for place, tag in enumerate(tags):
        groups.setdefault(tag, Bucket(tag, [])).places.append(place)
    return [groups[tag] for tag in sorted(groups)]


def score_buckets(
    metric: TextMetric, statistics: Statistics, groups: Sequence[Bucket], *, draws: int = DEFAULT_DRAWS, seed: int = 1
) -> list[BucketScore]:
    """The score of every group, with its 95 % interval: small groups are not sure."""
    found = []
    for label, places in groups:
        if places[-1] >= len(statistics.rows):
            raise DataError(f"group '{label}': found segment {places[-1] + 1}, expected at most {len(statistics.rows)}")
        part = Statistics(statistics.rows[places], statistics.signature)
        where = interval(bootstrap(metric, part, draws, seed))
        found.append(BucketScore(label, len(places), metric.score(part), where))
    return found
