"""Scores by sentence length (FIELD I4): the figure that shows why attention matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dragoman.errors import DataError


class LengthScore(NamedTuple):
    """The segments whose source has from `shortest` to `longest` words, and their BLEU."""

    min_length: int
    max_length: int
    segments: int
    bleu: float


def bleu_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    groups: int = 6,
    *,
    tokenize: str = "13a",
) -> list[LengthScore]:
    """Corpus BLEU of the segments in each group of source lengths, in words between spaces, short ones first."""
    if not len(sources) == len(hypotheses) == len(references):
        counts = f"{len(sources)} sources, {len(hypotheses)} hypotheses and {len(references)} segments of references"
        raise DataError(f"cannot score by length: found {counts}, expected as many of each")
    from sacrebleu.metrics.bleu import BLEU

    from dragoman.scoring.sacrebleu import reference_streams

    found: list[LengthScore] = []
    for min_length, max_length, places in length_buckets(sources, groups):
        metric = BLEU(tokenize=tokenize, force=True)
        score = metric.corpus_score(
            [hypotheses[place] for place in places], reference_streams([references[place] for place in places])
        )
        found.append(LengthScore(min_length, max_length, len(places), float(score.score)))
    return found


def length_buckets(sources: Sequence[str], groups: int) -> list[tuple[int, int, list[int]]]:
    """Shortest and longest source of each group, in words between spaces, and the places of its segments.

    Groups hold about equally many segments, as far as whole lengths allow; all segments of one length share a group.
    """
    order = sorted(range(len(sources)), key=lambda place: len(sources[place].split()))
    lengths = [len(sources[place].split()) for place in order]
    found = []
    first = 0
    for group in range(groups):
        last = max(first, round(len(order) * (group + 1) / groups))
        while 0 < last < len(order) and lengths[last] == lengths[last - 1]:
            last += 1
        if last > first:
            found.append((lengths[first], lengths[last - 1], order[first:last]))
        first = last
    return found
