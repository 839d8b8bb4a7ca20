"""From text to scores: edit distances, alignments, the table of metrics, and how sure their numbers are."""

from __future__ import annotations

from dragoman.scoring.edit import Alignment, Operation, align, edit_distance
from dragoman.scoring.error_rates import alignments
from dragoman.scoring.metric import Metric, Statistics
from dragoman.scoring.report import (
    ErrorRate,
    TextScores,
    character_error_rate,
    exact_matches,
    score_table,
    score_text,
    word_error_rate,
)
from dragoman.scoring.significance import compare
from dragoman.scoring.table import METRICS

__all__ = [
    "METRICS",
    "Alignment",
    "ErrorRate",
    "Metric",
    "Operation",
    "Statistics",
    "TextScores",
    "align",
    "alignments",
    "character_error_rate",
    "compare",
    "edit_distance",
    "exact_matches",
    "score_table",
    "score_text",
    "word_error_rate",
]
