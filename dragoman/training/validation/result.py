"""The scores of one validation, the interface of validators, and the batches that they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.data.batch import Batch
from dragoman.data.batching import BatchPlan, read_batch
from dragoman.data.corpus import Corpus
from dragoman.scoring.registry import metrics_by_name

SENTENCES = frozenset({"bleu", "chrf"})
SHOWN = (frozenset({"per", "wer"}), frozenset({"cer", "exact_match"}), frozenset({"wer", "cer"}), SENTENCES)


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


class Validator(Protocol):
    """Scores a model on the validation data."""

    def measure(self, model: Any, interrupted: Callable[[], bool] = ...) -> ValidationResult | None:
        """All scores of a model; None if `interrupted` became true on the way."""


def validation_batches(corpus: Corpus, budget: int = 4096) -> Iterator[Batch]:
    """All validation examples, in the same batches at every validation."""
    epoch = BatchPlan(corpus.valid, budget, seed=0, collator=corpus.collator).epoch(0)
    for index in range(len(epoch)):
        yield read_batch(corpus.valid, epoch[index], collator=corpus.collator)
