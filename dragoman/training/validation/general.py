"""Scores of general text before and during fine-tuning: they show what a model forgets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dragoman.files import write_text
from dragoman.scoring.registry import metrics_by_name
from dragoman.training.validation.result import ValidationResult, Validator

BEFORE = "general.json"  # the scores before training, in the run folder


class GeneralText:
    """Measures general text with the validator of the task."""

    def __init__(self, validator: Validator, run: Path) -> None:
        self.validator, self.path = validator, run / BEFORE
        self.before: dict[str, float] = {}

    def start(self, model: Any, step: int) -> str:
        """Measure the weights that training starts with, or read what a run that resumes measured; a line to show."""
        if step == 0 and (result := self.validator.measure(model)) is not None:
            self.before = result.scores
            write_text(self.path, json.dumps(self.before, indent=2))
            return f"general text before training  {result.line()}"
        try:
            scores = json.loads(self.path.read_text(encoding="utf-8"))
            self.before = {str(name): float(score) for name, score in scores.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self.before = {}
        return ""

    def line(self, result: ValidationResult) -> str:
        """The scores now, each with that before training."""
        metrics = metrics_by_name()
        shown = [name for name in ("loss", "bleu", "chrf", "accuracy", "perplexity") if name in result.scores][:3]
        parts = []
        for name in shown or list(result.scores)[:3]:
            before = f" (before {metrics[name].format(self.before[name])})" if name in self.before else ""
            parts.append(f"{name} {metrics[name].format(result.scores[name])}{before}")
        return f"general text  {'  '.join(parts)}"
