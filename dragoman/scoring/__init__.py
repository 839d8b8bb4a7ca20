"""From text to scores: edit distances, alignments and the metrics a run reports."""

from __future__ import annotations

from dragoman.scoring.edit import Alignment, Operation, align, edit_distance
from dragoman.scoring.metrics import (
    ErrorRate,
    TextScores,
    character_error_rate,
    exact_matches,
    score_text,
    word_error_rate,
)

__all__ = [
    "Alignment",
    "ErrorRate",
    "Operation",
    "TextScores",
    "align",
    "character_error_rate",
    "edit_distance",
    "exact_matches",
    "score_text",
    "word_error_rate",
]
