"""BLEU by source length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dragoman.errors import DataError


class LengthScore(NamedTuple):
    """BLEU of the segments whose source has from `min_length` to `max_length` words."""

    min_length: int
    max_length: int
    segments: int
    bleu: float


def bleu_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    buckets: int = 6,
    *,
    tokenize: str = "13a",
) -> list[LengthScore]:
    """Corpus BLEU of each bucket of source lengths in whitespace-separated words, short sources first."""
    if not len(sources) == len(hypotheses) == len(references):
        counts = f"{len(sources)} sources, {len(hypotheses)} hypotheses and {len(references)} segments of references"
        raise DataError(f"cannot score by length: found {counts}, expected as many of each")
    from sacrebleu.metrics.bleu import BLEU

    from dragoman.scoring.sacrebleu import reference_streams

    scores: list[LengthScore] = []
    for min_length, max_length, segments in length_buckets(sources, buckets):
        metric = BLEU(tokenize=tokenize, force=True)
        score = metric.corpus_score(
            [hypotheses[segment] for segment in segments],
            reference_streams([references[segment] for segment in segments]),
        )
        scores.append(LengthScore(min_length, max_length, len(segments), float(score.score)))
    return scores


def text_length(text: str, letters: bool = False) -> int:
    """The number of whitespace-separated words, or of letters."""
    return len(text.strip() if letters else text.split())


def length_buckets(sources: Sequence[str], buckets: int, letters: bool = False) -> list[tuple[int, int, list[int]]]:
    """The shortest and longest source of each bucket, in words or letters, and the indices of its segments.

    Buckets have about equally many segments; all segments of one length are in the same bucket.
    """
    order = sorted(range(len(sources)), key=lambda segment: text_length(sources[segment], letters))
    lengths = [text_length(sources[segment], letters) for segment in order]
    found = []
    first = 0
    for number in range(1, buckets + 1):
        last = max(first, round(len(order) * number / buckets))
        while 0 < last < len(order) and lengths[last] == lengths[last - 1]:
            last += 1
        if last > first:
            found.append((lengths[first], lengths[last - 1], order[first:last]))
        first = last
    return found
