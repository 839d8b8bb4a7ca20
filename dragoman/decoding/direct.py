"""Answers without a search: what a model read out of a batch, as labels, numbers or tags (FIELD A2, A3)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from dragoman.data.batch import Batch
from dragoman.errors import DragomanError
from dragoman.models.contracts import ClassifierModel, ClassifierOutput
from dragoman.scoring.label_metrics import classification_report
from dragoman.scoring.metric import OutputKind


@dataclass(frozen=True)
class Answer:
    """One answer; str() gives its text."""

    text: str
    value: Any  # what metrics compare: a label, a number, or the tags of a sentence
    details: dict[str, Any] = field(default_factory=dict)  # what --json adds

    def __str__(self) -> str:
        return self.text

    def as_json(self) -> str:
        """One JSON object on one line."""
        return json.dumps({"text": self.text, **self.details}, ensure_ascii=False)


class Readout(Protocol):
    """How a batch is answered, and what its answers are scored by."""

    outputs: OutputKind  # the metrics of this kind of output score the answers

    def read(self, model: ClassifierModel, batch: Batch, codec: Any) -> list[Answer]:
        """The answers of a batch."""

    def truths(self, batch: Batch, codec: Any) -> list[Any]:
        """What the targets of a batch say, as answers' values do."""

    def truth(self, text: str) -> Any:
        """What a target says, as it stands in a file."""

    def report(self, found: Sequence[Any], expected: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Scores of every label; empty where there are none."""


@torch.no_grad()
def answers(model: ClassifierModel, batch: Batch) -> ClassifierOutput:
    """What a model answers; weights that cannot be computed with are said so."""
    found = model.predict(batch)
    told = found.values if found.probabilities is None else found.probabilities
    if not bool(told.isfinite().all()):
        raise DragomanError("found no answer: the model's outputs are NaN or infinite; its weights are broken")
    return found


class LabelReadout:
    """The likeliest label."""

    outputs: OutputKind = "labels"

    def read(self, model: ClassifierModel, batch: Batch, codec: Any) -> list[Answer]:
        """Labels with the probabilities of all."""
        found = answers(model, batch)
        assert found.probabilities is not None
        out = []
        for label, row in zip(found.values[:, 0].tolist(), found.probabilities[:, 0].tolist(), strict=True):
            name = codec.names[label]
            out.append(Answer(name, name, {"probabilities": dict(zip(codec.names, row, strict=True))}))
        return out

    def truths(self, batch: Batch, codec: Any) -> list[Any]:
        """Labels."""
        return [codec.names[label] for label in batch.target[:, 0].tolist()]

    def truth(self, text: str) -> Any:
        """The label."""
        return text

    def report(self, found: Sequence[Any], expected: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Of every label."""
        return classification_report(found, expected)


class NumberReadout:
    """A number, in the scale of the data."""

    outputs: OutputKind = "numbers"

    def read(self, model: ClassifierModel, batch: Batch, codec: Any) -> list[Answer]:
        """Numbers."""
        values = [codec.unscale(scaled) for scaled in answers(model, batch).values[:, 0].double().tolist()]
        return [Answer(f"{value:.7g}", value, {"value": value}) for value in values]

    def truths(self, batch: Batch, codec: Any) -> list[Any]:
        """Numbers."""
        return [codec.unscale(scaled) for scaled in batch.target[:, 0].tolist()]

    def truth(self, text: str) -> Any:
        """The number."""
        return float(text)

    def report(self, found: Sequence[Any], expected: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Numbers have no labels."""
        return {}


class TagReadout:
    """A tag for every word."""

    outputs: OutputKind = "tags"

    def read(self, model: ClassifierModel, batch: Batch, codec: Any) -> list[Answer]:
        """Tags and the probability of each."""
        found = answers(model, batch)
        assert found.probabilities is not None
        chosen = found.probabilities.gather(2, found.values[:, :, None])[:, :, 0]
        out = []
        rows = zip(found.values.tolist(), chosen.tolist(), found.mask.sum(1).tolist(), strict=True)
        for values, sure, count in rows:
            tags = tuple(codec.pieces(values[:count]))
            out.append(Answer(" ".join(tags), tags, {"tags": list(tags), "probabilities": sure[:count]}))
        return out

    def truths(self, batch: Batch, codec: Any) -> list[Any]:
        """Tags."""
        return [tuple(codec.pieces([tag for tag in row if tag >= 0])) for row in batch.target[:, 0].tolist()]

    def truth(self, text: str) -> Any:
        """Tags."""
        return tuple(text.split(" "))

    def report(self, found: Sequence[Any], expected: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Of every tag."""
        return classification_report([tag for row in found for tag in row], [tag for row in expected for tag in row])
