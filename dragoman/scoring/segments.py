"""What one output costs, from 0 (right) upwards: the metrics of this package, segment by segment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from dragoman.scoring.report import character_error_rate, exact_matches, word_error_rate

SegmentMetric = Literal["bleu", "chrf", "wer", "cer", "per", "exact_match"]


def _bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(effective_order=True)  # a segment shorter than four words has no 4-grams to match
    pairs = zip(hypotheses, references, strict=True)
    return [1.0 - metric.sentence_score(hypothesis, list(texts)).score / 100 for hypothesis, texts in pairs]


def _chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    pairs = zip(hypotheses, references, strict=True)
    return [1.0 - metric.sentence_score(hypothesis, list(texts)).score / 100 for hypothesis, texts in pairs]


def _words(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    rate = word_error_rate(hypotheses, references)
    return [edits / max(1, length) for edits, length in zip(rate.edits, rate.lengths, strict=True)]


def _characters(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    rate = character_error_rate(hypotheses, references)
    return [edits / max(1, length) for edits, length in zip(rate.edits, rate.lengths, strict=True)]


def _exact(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    return [0.0 if match else 1.0 for match in exact_matches(hypotheses, references)]


COSTS: dict[str, Callable[[Sequence[str], Sequence[Sequence[str]]], list[float]]] = {
    "bleu": _bleu,
    "chrf": _chrf,
    "wer": _words,
    "cer": _characters,
    "per": _words,  # phonemes stand between spaces as words do
    "exact_match": _exact,
}


def segment_costs(hypotheses: Sequence[str], references: Sequence[Sequence[str]], metric: SegmentMetric) -> list[float]:
    """The cost of every hypothesis: 1 − BLEU, 1 − chrF, error rate, or 1 for what is not exactly right."""
    return COSTS[metric](hypotheses, references)
