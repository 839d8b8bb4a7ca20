"""Scores of subsets of a test set: by length, by frequency of the rarest source word, by tag."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from dragoman.base import DataError
from dragoman.scoring.metric import Statistics, TextMetric
from dragoman.scoring.significance import DEFAULT_DRAWS, Interval, bootstrap, interval

FREQUENCIES = (0, 1, 2, 10, 100, 1000)  # lower bounds of the frequency buckets


class Bucket(NamedTuple):
    """A subset of the segments."""

    label: str
    segments: list[int]  # indices


class BucketScore(NamedTuple):
    """The score of a bucket."""

    label: str
    segments: int
    score: float
    interval: Interval


def text_length(text: str, letters: bool = False) -> int:
    return len(text.strip() if letters else text.split())


def by_length(sources: Sequence[str], buckets: int = 6, letters: bool = False) -> list[Bucket]:
    """Buckets of about equally many segments by the number of source words or letters, short ones first.

    All segments of one length are in the same bucket.
    """
    order = sorted(range(len(sources)), key=lambda segment: text_length(sources[segment], letters))
    lengths = [text_length(sources[segment], letters) for segment in order]
    parts: list[Bucket] = []
    first = 0
    for number in range(1, buckets + 1):
        last = max(first, round(len(order) * number / buckets))
        while 0 < last < len(order) and lengths[last] == lengths[last - 1]:
            last += 1
        if last > first:
            shortest, longest = lengths[first], lengths[last - 1]
            label = f"{shortest}" if shortest == longest else f"{shortest}–{longest}"
            parts.append(Bucket(label, order[first:last]))
        first = last
    return parts


def by_frequency(sources: Sequence[str], training: Iterable[str]) -> list[Bucket]:
    """Buckets by the number of times that the rarest source word occurs in the training text, unseen words first.

    Words are separated by whitespace and case-sensitive. A source without words is in no bucket.
    """
    counts: Counter[str] = Counter()
    for line in training:
        counts.update(line.split())
    labels = ["unseen", "once"]
    labels += [f"{first}–{following - 1}" for first, following in pairwise(FREQUENCIES[2:])] + [f"{FREQUENCIES[-1]}+"]
    buckets = [Bucket(label, []) for label in labels]
    for segment, source in enumerate(sources):
        if words := source.split():
            buckets[bisect_right(FREQUENCIES, min(counts[word] for word in words)) - 1].segments.append(segment)
    return [bucket for bucket in buckets if bucket.segments]


def by_tag(tags: Sequence[str]) -> list[Bucket]:
    buckets: dict[str, Bucket] = {}
    for segment, tag in enumerate(tags):
        buckets.setdefault(tag, Bucket(tag, [])).segments.append(segment)
    return [buckets[tag] for tag in sorted(buckets)]


def score_buckets(
    metric: TextMetric, statistics: Statistics, buckets: Sequence[Bucket], *, draws: int = DEFAULT_DRAWS, seed: int = 1
) -> list[BucketScore]:
    """The score of every bucket, with its 95 % confidence interval by bootstrap."""
    scores = []
    for label, segments in buckets:
        if segments[-1] >= len(statistics.rows):
            raise DataError(
                f"bucket '{label}': found segment {segments[-1] + 1}, expected at most {len(statistics.rows)}"
            )
        part = Statistics(statistics.rows[segments], statistics.signature)
        confidence = interval(bootstrap(metric, part, draws, seed))
        scores.append(BucketScore(label, len(segments), metric.score(part), confidence))
    return scores
