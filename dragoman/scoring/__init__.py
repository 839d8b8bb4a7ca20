"""Metrics of texts and labels, edit distance, confidence intervals and significance tests."""

from __future__ import annotations

from dragoman.scoring.edit import Alignment, Operation, align, edit_distance
from dragoman.scoring.error_rates import alignments
from dragoman.scoring.metric import LabelMetric, Metric, Statistics, TextMetric
from dragoman.scoring.registry import metrics_for, register
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

__all__ = [
    "Alignment",
    "ErrorRate",
    "LabelMetric",
    "Metric",
    "Operation",
    "Statistics",
    "TextMetric",
    "TextScores",
    "align",
    "alignments",
    "character_error_rate",
    "compare",
    "edit_distance",
    "exact_matches",
    "metrics_for",
    "register",
    "score_table",
    "score_text",
    "word_error_rate",
]
