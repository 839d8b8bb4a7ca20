"""The scores of one validation, the base of validators, and the batches that they read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dragoman.base import write_text
from dragoman.data import Batch, BatchPlan, Corpus, read_batch
from dragoman.scoring import metrics_by_name

SENTENCES = frozenset({"bleu", "chrf"})
SHOWN = (frozenset({"per", "wer"}), frozenset({"cer", "exact_match"}), frozenset({"wer", "cer"}), SENTENCES)
GENERAL = ("loss", "bleu", "chrf", "accuracy", "perplexity")  # of general text, the first three that a task has
Check = Callable[[], None]  # called for each batch; raises Interrupted if training is to stop


class Interrupted(Exception):  # noqa: N818  (no error: a signal asked the run to stop)
    """Ends a validation on the way."""


def no_check() -> None:
    """For measurements that nothing interrupts."""


@dataclass(frozen=True)
class ValidationResult:
    """Scores of the model at one step."""

    scores: dict[str, float]
    sample: tuple[str, str] | None = None  # an input and the model's output
    references: tuple[str, ...] = ()  # of the sample

    def line(self, metric: str = "loss") -> str:
        """The scores that matter for the task as one line; metrics.jsonl has all of them.

        `metric` selects the best weights. The error rates of characters and whole outputs go with short outputs, BLEU
        and chrF with sentences.
        """
        metrics = metrics_by_name()
        beside = next((names for names in SHOWN if metric in names and names <= self.scores.keys()), SENTENCES)
        if not beside & self.scores.keys():  # labels, numbers, language models: the first are the usual ones
            beside = frozenset(list(self.scores)[:3])
        shown = [name for name in self.scores if name in {"loss", metric, *beside}]
        return "  ".join(f"{name} {metrics[name].format(self.scores[name])}" for name in shown)

    def sample_line(self) -> str:
        """The sample with its reference, where the output differs from it; empty without a sample."""
        if self.sample is None:
            return ""
        source, output = self.sample
        if not self.references:
            return f"  e.g. {source}  →  {output}"
        right = output in self.references
        return f"  e.g. {source}  →  {output}  {'✓' if right else f'✗  reference: {self.references[0]}'}"


class Validator:
    """Scores a model on the validation data."""

    def measure(self, model: Any, interrupted: Callable[[], bool] = lambda: False) -> ValidationResult | None:
        """All scores of a model; None if `interrupted` became true on the way."""

        def check() -> None:
            if interrupted():
                raise Interrupted

        model.eval()
        with torch.no_grad(), suppress(Interrupted):
            return self.result(model, check)
        return None

    def result(self, model: Any, check: Check) -> ValidationResult:
        """The scores of a model in evaluation mode; calls `check` once per batch."""
        raise NotImplementedError


class GeneralText:
    """Scores of general text before and during fine-tuning: they show what a model forgets."""

    def __init__(self, validator: Validator, run: Path) -> None:
        self.validator, self.path = validator, run / "general.json"  # the scores before training
        self.before: dict[str, float] = {}

    def start(self, model: Any, step: int) -> str:
        """Measure the weights that training starts with, or read what a run that resumes measured; a line to show."""
        if step == 0 and (result := self.validator.measure(model)) is not None:
            self.before = result.scores
            write_text(self.path, json.dumps(self.before, indent=2))
            return f"general text before training  {result.line()}"
        with suppress(OSError, ValueError, TypeError, AttributeError):
            scores = json.loads(self.path.read_text(encoding="utf-8"))
            self.before = {str(name): float(score) for name, score in scores.items()}
        return ""

    def line(self, result: ValidationResult) -> str:
        """The scores now, each with that before training."""
        metrics, parts = metrics_by_name(), []
        for name in ([name for name in GENERAL if name in result.scores] or list(result.scores))[:3]:
            before = f" (before {metrics[name].format(self.before[name])})" if name in self.before else ""
            parts.append(f"{name} {metrics[name].format(result.scores[name])}{before}")
        return f"general text  {'  '.join(parts)}"


def validation_batches(corpus: Corpus, budget: int = 4096) -> Iterator[Batch]:
    """All validation examples, in the same batches at every validation."""
    epoch = BatchPlan(corpus.valid, budget, seed=0, collator=corpus.collator).epoch(0)
    for index in range(len(epoch)):
        yield read_batch(corpus.valid, epoch[index], collator=corpus.collator)
