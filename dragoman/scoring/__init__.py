"""Metrics of texts and labels, edit distance, confidence intervals and significance tests."""

from __future__ import annotations

from dragoman.scoring.edit import EditAlignment, EditOperation, align_edits, edit_distance
from dragoman.scoring.error_rates import (
    ErrorRate,
    character_error_rate,
    edit_alignments,
    exact_matches,
    word_error_rate,
)
from dragoman.scoring.metric import LabelMetric, Metric, Statistics, TextMetric
from dragoman.scoring.registry import metrics_for
from dragoman.scoring.report import TextScores, score_table, score_text
from dragoman.scoring.significance import compare

__all__ = [
    "EditAlignment",
    "EditOperation",
    "ErrorRate",
    "LabelMetric",
    "Metric",
    "Statistics",
    "TextMetric",
    "TextScores",
    "align_edits",
    "character_error_rate",
    "compare",
    "edit_alignments",
    "edit_distance",
    "exact_matches",
    "metrics_for",
    "score_table",
    "score_text",
    "word_error_rate",
]
