"""The numbers a run reports of its outputs, taken from the table of metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dragoman.scoring.error_rates import ErrorRate, character_error_rate, exact_matches, word_error_rate
from dragoman.scoring.metric import References
from dragoman.scoring.significance import intervals
from dragoman.scoring.table import Units, chosen, statistics

__all__ = [
    "ErrorRate",
    "TextScores",
    "character_error_rate",
    "exact_matches",
    "score_table",
    "score_text",
    "word_error_rate",
]

# What a run reports when nothing is asked for.
REPORTED: dict[Units, tuple[str, ...]] = {
    "words": ("bleu", "chrf", "wer", "cer", "exact_match"),
    "phonemes": ("bleu", "chrf", "wer", "cer", "exact_match", "per"),
}


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
        """The scores as JSON takes them, without the phoneme error rate where there is none."""
        scores = asdict(self)
        if self.per is None:
            del scores["per"]
        return scores


def score_text(hypotheses: Sequence[str], references: References, *, units: Units = "words") -> TextScores:
    """Every metric a run reports, each with the signature that says how it was counted.

    `references` holds, per segment, one or more texts; their number may differ between segments. With
    phonemes the edit rate over whitespace tokens is `per`, and `wer` becomes the share of inputs that match
    no reference exactly, as the literature on grapheme-to-phoneme conversion reports it.
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
    """The scores of these names, or those a run reports, as JSON takes them; with `draws`, 95 % intervals too."""
    metrics = chosen(tuple(names) or REPORTED[units], units)
    counts = statistics(hypotheses, references, metrics)
    table: dict[str, Any] = {"segments": len(hypotheses)}
    table |= {name: metric.score(counts[name]) for name, metric in metrics.items()}
    if draws:
        table["intervals"] = intervals(metrics, counts, draws, seed)
    return table | {"signatures": {name: counted.signature for name, counted in counts.items()}}
