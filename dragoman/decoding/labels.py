"""Decoding of the heads that need no search: labels, numbers, tags of words, and masked tokens."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dragoman.base import ConfigError, DragomanError
from dragoman.classical import LabelOutput
from dragoman.data.formats import MASK_ID
from dragoman.data.tokenizers import PAD, SPECIALS, parse_steps
from dragoman.decoding.hypothesis import split_at_eos
from dragoman.scoring import OutputKind, classification_report

if TYPE_CHECKING:
    from dragoman.data import Batch
    from dragoman.models import ClassifierModel

NUM_SHOWN = 5  # candidates per [MASK]


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


class HeadDecoder(ABC):
    """From a model's outputs and from targets to the values that metrics compare."""

    outputs: OutputKind  # the metrics of this kind score the predictions

    def decode(self, model: Any, batch: Batch, codec: Any) -> list[LabelPrediction]:
        """The predictions of a batch."""
        return self.predictions(output_of(model, batch), codec)

    @abstractmethod
    def predictions(self, output: LabelOutput, codec: Any) -> list[LabelPrediction]:
        """The predictions from the outputs of a model; an error if these are NaN or infinite."""

    @abstractmethod
    def references(self, batch: Batch, codec: Any) -> list[Any]:
        """The values of a batch's targets."""

    @abstractmethod
    def parse_reference(self, text: str) -> Any:
        """The value of a target as a file has it."""

    def report(self, predicted: Sequence[Any], references: Sequence[Any]) -> dict[str, dict[str, float]]:
        """The scores of each label; empty where there are no labels."""
        return {}


def check_finite(numbers: NDArray[Any]) -> None:
    if not np.isfinite(numbers).all():
        raise DragomanError("found no answer: the model's outputs are NaN or infinite; its weights are broken")


def output_of(model: ClassifierModel, batch: Batch) -> LabelOutput:
    import torch

    with torch.no_grad():
        output = model.predict(batch)
    shares = output.probabilities
    return LabelOutput(
        output.values.cpu().numpy(), None if shares is None else shares.cpu().numpy(), output.mask.cpu().numpy()
    )


def checked_probabilities(output: LabelOutput) -> NDArray[Any]:
    assert output.probabilities is not None
    check_finite(output.probabilities)
    return output.probabilities


class LabelDecoder(HeadDecoder):
    """The most probable label, with the probabilities of all labels."""

    outputs = "labels"

    def predictions(self, output: LabelOutput, codec: Any) -> list[LabelPrediction]:
        shares = checked_probabilities(output)
        predictions = []
        for label, row in zip(output.values[:, 0].tolist(), shares[:, 0].tolist(), strict=True):
            name, probabilities = codec.names[label], dict(zip(codec.names, row, strict=True))
            predictions.append(LabelPrediction(name, name, {"probabilities": probabilities}))
        return predictions

    def references(self, batch: Batch, codec: Any) -> list[Any]:
        return [codec.names[label] for label in batch.target[:, 0].tolist()]

    def parse_reference(self, text: str) -> Any:
        return text

    def report(self, predicted: Sequence[Any], references: Sequence[Any]) -> dict[str, dict[str, float]]:
        return classification_report(predicted, references)


def number_or_numbers(values: Sequence[float]) -> float | tuple[float, ...]:
    return values[0] if len(values) == 1 else tuple(values)


class NumberDecoder(HeadDecoder):
    """One or more numbers, in the scale of the data."""

    outputs = "numbers"

    def predictions(self, output: LabelOutput, codec: Any) -> list[LabelPrediction]:
        check_finite(output.values)
        predictions = []
        for row in output.values.tolist():
            values = codec.unscale(row)
            details = {"value": values[0]} if len(values) == 1 else {"values": values}
            predictions.append(LabelPrediction(codec.text(values), number_or_numbers(values), details))
        return predictions

    def references(self, batch: Batch, codec: Any) -> list[Any]:
        return [number_or_numbers(codec.unscale(row)) for row in batch.target.tolist()]

    def parse_reference(self, text: str) -> Any:
        return number_or_numbers([number for step in parse_steps(text) for number in step])


class TagDecoder(HeadDecoder):
    """A tag for every word, with the probability of each."""

    outputs = "tags"

    def predictions(self, output: LabelOutput, codec: Any) -> list[LabelPrediction]:
        chosen = np.take_along_axis(checked_probabilities(output), output.values[:, :, None], 2)[:, :, 0]
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
        return classification_report(list(chain.from_iterable(predicted)), list(chain.from_iterable(references)))


class MaskDecoder(HeadDecoder):
    """The most probable token for every [MASK], each as if the others stayed masked.

    Such a model has no references: `masked_lm_scores` measures it instead.
    """

    outputs = "masked tokens"

    def decode(self, model: Any, batch: Batch, codec: Any) -> list[LabelPrediction]:
        import torch

        if not hasattr(model, "fill"):
            kind = model.config.kind
            raise ConfigError(f'model.kind: found "{kind}", which cannot fill [MASK], expected "masked-lm"')
        masked = (batch.source.data == MASK_ID) & batch.source.mask
        with torch.no_grad():
            scores = model.fill(batch.source.data, batch.source.mask, masked)
        check_finite(scores[masked].cpu().numpy())
        scores[:, :, : len(SPECIALS)] = -math.inf  # they are no text
        best = scores.topk(min(NUM_SHOWN, scores.shape[2] - len(SPECIALS)), -1)
        predictions = []
        for row, source in enumerate(batch.source.data.tolist()):
            masks = []
            for position, token in enumerate(source):
                if token != MASK_ID:
                    continue
                tokens = best.indices[row, position].tolist()
                probabilities = best.values[row, position].exp().tolist()
                masks.append(
                    [
                        {"token": piece, "text": codec.decode([token]), "probability": probability}
                        for token, piece, probability in zip(tokens, codec.pieces(tokens), probabilities, strict=True)
                    ]
                )
                source[position] = tokens[0]
            *texts, rest = split_at_eos(source[: source.index(PAD)] if PAD in source else source)
            text = "\t".join(codec.decode(tokens) for tokens in ([*texts, rest] if rest else texts))
            predictions.append(LabelPrediction(text, text, {"masks": masks}))
        return predictions

    def predictions(self, output: LabelOutput, codec: Any) -> list[LabelPrediction]:
        raise NotImplementedError("candidates of masks are no labels: see `decode`")

    def references(self, batch: Batch, codec: Any) -> list[Any]:
        return [None] * len(batch.source)

    def parse_reference(self, text: str) -> Any:
        return None
