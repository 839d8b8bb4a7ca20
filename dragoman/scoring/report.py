"""Scores of a set of outputs by several metrics, as `evaluate` and `score` report them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dragoman.scoring.metric import References, Units
from dragoman.scoring.registry import EVALUATION_DEFAULTS, select_metrics, text_statistics
from dragoman.scoring.significance import intervals


@dataclass(frozen=True)
class TextScores:
    """The scores of one set of outputs: BLEU and chrF from 0 to 100, the others as fractions."""

    segments: int
    bleu: float
    chrf: float
    wer: float
    cer: float
    exact_match: float
    per: float | None
    signatures: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """The scores for JSON, without the phoneme error rate where there is none."""
        scores = asdict(self)
        if self.per is None:
            del scores["per"]
        return scores


def score_text(hypotheses: Sequence[str], references: References, *, units: Units = "words") -> TextScores:
    """The default metrics of an evaluation, each with the signature that says how it was counted.

    `references` has one or more texts per segment; their number may differ between segments. With phonemes the edit
    rate over whitespace-separated tokens is `per`, and `wer` is the share of inputs that match no reference exactly, as
    the literature on grapheme-to-phoneme conversion reports it.
    """
    return TextScores(**{"per": None} | score_table(hypotheses, references, units=units))


def score_table(
    hypotheses: Sequence[str],
    references: References,
    names: Iterable[str] = (),
    *,
    units: Units = "words",
    draws: int = 0,
    seed: int = 1,
) -> dict[str, Any]:
    """The scores by the named metrics, or by the defaults of an evaluation, for JSON.

    With `draws` bootstrap samples the table also has 95 % confidence intervals.
    """
    metrics = select_metrics(tuple(names) or EVALUATION_DEFAULTS[units], units)
    counts = text_statistics(hypotheses, references, metrics)
    table: dict[str, Any] = {"segments": len(hypotheses)}
    table |= {name: metric.score(counts[name]) for name, metric in metrics.items()}
    if draws:
        table["intervals"] = intervals(metrics, counts, draws, seed)
    return table | {"signatures": {name: statistics.signature for name, statistics in counts.items()}}
