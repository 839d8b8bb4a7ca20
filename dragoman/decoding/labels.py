"""Decoding of the heads that need no search: labels, numbers, and tags of words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from dragoman.data.batch import Batch
from dragoman.data.tokenizers.numbers import parse_steps
from dragoman.errors import DragomanError
from dragoman.models.contracts import ClassifierModel, ClassifierOutput
from dragoman.scoring.label_metrics import classification_report
from dragoman.scoring.metric import OutputKind


@dataclass(frozen=True)
class LabelPrediction:
    """One predicted label, number or row of tags; str() gives its text."""

    text: str
    value: Any  # what metrics compare: a label, a number, or the tags of a sentence
    details: dict[str, Any] = field(default_factory=dict)  # further fields of --json

    def __str__(self) -> str:
        return self.text

    def as_table(self) -> dict[str, Any]:
        return {"text": self.text, **self.details}

    def as_json(self, **before: Any) -> str:
        """One JSON object on one line; `before` are fields in front of its own."""
        return json.dumps({**before, **self.as_table()}, ensure_ascii=False)


class HeadDecoder(Protocol):
    """From a model's outputs and from targets to the values that metrics compare."""

    outputs: OutputKind  # the metrics of this kind score the predictions

    def decode(self, model: ClassifierModel, batch: Batch, codec: Any) -> list[LabelPrediction]:
        """The predictions of a batch."""

    def references(self, batch: Batch, codec: Any) -> list[Any]:
        """The values of a batch's targets."""

    def parse_reference(self, text: str) -> Any:
        """The value of a target as a file has it."""

    def report(self, predicted: Sequence[Any], references: Sequence[Any]) -> dict[str, dict[str, float]]:
        """The scores of each label; empty where there are no labels."""


@torch.no_grad()
def finite_outputs(model: ClassifierModel, batch: Batch) -> ClassifierOutput:
    """The model's outputs; an error if they are NaN or infinite."""
    output = model.predict(batch)
    numbers = output.values if output.probabilities is None else output.probabilities
    if not bool(numbers.isfinite().all()):
        raise DragomanError("found no answer: the model's outputs are NaN or infinite; its weights are broken")
    return output


class LabelDecoder:
    """The most probable label."""

    outputs: OutputKind = "labels"

    def decode(self, model: ClassifierModel, batch: Batch, codec: Any) -> list[LabelPrediction]:
        """Labels, with the probabilities of all labels."""
        output = finite_outputs(model, batch)
        assert output.probabilities is not None
        predictions = []
        for label, row in zip(output.values[:, 0].tolist(), output.probabilities[:, 0].tolist(), strict=True):
            probabilities = dict(zip(codec.names, row, strict=True))
            predictions.append(
                LabelPrediction(codec.names[label], codec.names[label], {"probabilities": probabilities})
            )
        return predictions

    def references(self, batch: Batch, codec: Any) -> list[Any]:
        return [codec.names[label] for label in batch.target[:, 0].tolist()]

    def parse_reference(self, text: str) -> Any:
        return text

    def report(self, predicted: Sequence[Any], references: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Precision, recall and F1 of each label."""
        return classification_report(predicted, references)


def number_or_numbers(values: Sequence[float]) -> float | tuple[float, ...]:
    """A number alone; several as a tuple."""
    return values[0] if len(values) == 1 else tuple(values)


class NumberDecoder:
    """One or more numbers, in the scale of the data."""

    outputs: OutputKind = "numbers"

    def decode(self, model: ClassifierModel, batch: Batch, codec: Any) -> list[LabelPrediction]:
        predictions = []
        for row in finite_outputs(model, batch).values.double().tolist():
            values = codec.unscale(row)
            details = {"value": values[0]} if len(values) == 1 else {"values": values}
            predictions.append(LabelPrediction(codec.text(values), number_or_numbers(values), details))
        return predictions

    def references(self, batch: Batch, codec: Any) -> list[Any]:
        """Numbers in the scale of the data."""
        return [number_or_numbers(codec.unscale(row)) for row in batch.target.tolist()]

    def parse_reference(self, text: str) -> Any:
        return number_or_numbers([number for step in parse_steps(text) for number in step])

    def report(self, predicted: Sequence[Any], references: Sequence[Any]) -> dict[str, dict[str, float]]:
        return {}


class TagDecoder:
    """A tag for every word."""

    outputs: OutputKind = "tags"

    def decode(self, model: ClassifierModel, batch: Batch, codec: Any) -> list[LabelPrediction]:
        """Tags, with the probability of each."""
        output = finite_outputs(model, batch)
        assert output.probabilities is not None
        chosen = output.probabilities.gather(2, output.values[:, :, None])[:, :, 0]
        predictions = []
        rows = zip(output.values.tolist(), chosen.tolist(), output.mask.sum(1).tolist(), strict=True)
        for values, probabilities, count in rows:
            tags = tuple(codec.pieces(values[:count]))
            details = {"tags": list(tags), "probabilities": probabilities[:count]}
            predictions.append(LabelPrediction(" ".join(tags), tags, details))
        return predictions

    def references(self, batch: Batch, codec: Any) -> list[Any]:
        """The tags of each sentence; negative ids are padding."""
        return [tuple(codec.pieces([tag for tag in row if tag >= 0])) for row in batch.target[:, 0].tolist()]

    def parse_reference(self, text: str) -> Any:
        return tuple(text.split(" "))

    def report(self, predicted: Sequence[Any], references: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Precision, recall and F1 of each tag."""
        return classification_report(
            [tag for row in predicted for tag in row], [tag for row in references for tag in row]
        )
