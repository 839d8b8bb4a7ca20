"""Sequence classification and regression: any encoder, pooling over its memory, and an output layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base import ConfigError
from dragoman.base.config import Share, SizeOrNone, setting
from dragoman.data import Batch
from dragoman.models.contracts import ClassifierOutput, Loss, TokenScores
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.heads.softmax import full_precision
from dragoman.models.layers.augmentation import AugmentationConfig, NoAugmentationConfig
from dragoman.models.layers.linear import glorot
from dragoman.models.layers.pooling import POOLINGS, MeanConfig, PoolingConfig
from dragoman.models.registry import AnyEncoderConfig
from dragoman.models.sources import LabelModel


@dataclass(frozen=True)
class ClassifierConfig:
    """One label, or one or more numbers, for one or two texts, series of numbers, a recording or a picture."""

    kind: ClassVar[str] = "classifier"
    pooling: PoolingConfig = setting(MeanConfig(), help="how the memory of a text becomes one vector")
    texts: Literal["joined", "apart"] = setting(
        "joined",
        help="two texts: joined into one row with a separator, or encoded apart and compared as [u; v; |u − v|; u ⊙ v]",
    )
    head: Literal["softmax", "sigmoid"] = setting(
        "softmax", help="output layer: softmax with a unit for each label, or for two labels one unit with a sigmoid"
    )
    hidden: SizeOrNone = setting(0, help="size of a tanh layer before the output layer; 0: none")
    dropout: Share = setting(0.0, help="dropout on the pooled vector and on the hidden layer")
    word_dropout: Share = setting(0.0, help="share of input tokens replaced by <unk> during training")
    label_smoothing: Share = setting(0.0, help="share of the target probability spread over all labels")
    augment: AugmentationConfig = setting(
        NoAugmentationConfig(), help="data augmentation of recordings and pictures during training"
    )
    encoder: AnyEncoderConfig = setting(RecurrentEncoderConfig(), help="encoder of the source")


class PooledModel(LabelModel):
    """The common part of classifier and regressor: one row of outputs per source."""

    def __init__(self, config: ClassifierConfig, inputs: nn.Module, outputs: int, *, keep_from: int) -> None:
        super().__init__(config, inputs, keep_from)
        self.pooling = POOLINGS[type(config.pooling)](config.pooling, self.encoder.width)
        width = self.pooling.width * (4 if config.texts == "apart" else 1)
        self.dropout = nn.Dropout(config.dropout)
        self.hidden = nn.Linear(width, config.hidden) if config.hidden else None
        self.output = nn.Linear(config.hidden or width, outputs)
        for layer in (self.hidden, self.output):
            if layer is not None:
                glorot(layer)

    def pooled(self, source: Tensor, mask: Tensor) -> Tensor:
        """One vector (B, P) for each source (B, S)."""
        memory = self.encoder(self.word_dropout(source), mask)
        return self.pooling(memory.values, memory.mask, memory.final[-1])

    def outputs(self, batch: Batch) -> Tensor:
        """Logits or numbers (B, K), at least float32."""
        source, mask = batch.source.data, batch.source.mask
        if self.config.texts == "apart":  # (B, 2, S)
            both = self.pooled(source.flatten(0, 1), mask.flatten(0, 1))
            u, v = both[0::2], both[1::2]
            vector = torch.cat([u, v, (u - v).abs(), u * v], 1)
        else:
            vector = self.pooled(source, mask)
        vector = self.dropout(vector)
        if self.hidden is not None:
            vector = self.dropout(torch.tanh(self.hidden(vector)))
        return full_precision(self.output(vector))


class Classifier(PooledModel):
    """Predicts one of several labels; targets (B, 1)."""

    def __init__(self, config: ClassifierConfig, inputs: nn.Module, outputs: int, *, keep_from: int) -> None:
        if config.head == "sigmoid" and outputs != 2:
            raise ConfigError(
                f'model.head: found "sigmoid" for {outputs} labels, expected "softmax" (sigmoid: 2 labels)'
            )
        super().__init__(config, inputs, 1 if config.head == "sigmoid" else outputs, keep_from=keep_from)

    def outputs(self, batch: Batch) -> Tensor:
        """Logits (B, K). A sigmoid of z is the second of softmax([0, z]), so losses and exports know softmax alone."""
        found = super().outputs(batch)
        return F.pad(found, (1, 0)) if self.config.head == "sigmoid" else found

    def forward(self, batch: Batch) -> Loss:
        """Summed cross-entropy and the number of rows."""
        smoothing = self.config.label_smoothing if self.training else 0.0
        truth = batch.target[:, 0]
        total = F.cross_entropy(self.outputs(batch), truth, reduction="sum", label_smoothing=smoothing)
        return Loss(total, torch.ones_like(truth).sum())

    def score(self, batch: Batch) -> TokenScores:
        outputs = self.outputs(batch)
        chosen = outputs.log_softmax(-1).gather(1, batch.target)
        return TokenScores(chosen, outputs.argmax(-1, keepdim=True) == batch.target, torch.ones_like(chosen).bool())

    def predict(self, batch: Batch) -> ClassifierOutput:
        """The most probable label (B, 1) and the probabilities of all labels (B, 1, K)."""
        probabilities = self.outputs(batch).softmax(-1)[:, None]
        return ClassifierOutput(probabilities.argmax(-1), probabilities, torch.ones_like(probabilities[:, :, 0]).bool())


class Regressor(PooledModel):
    """Predicts K numbers; targets (B, K) are standardised by the number codec."""

    def forward(self, batch: Batch) -> Loss:
        """Summed squared error and the count of numbers."""
        error = self.outputs(batch) - batch.target.to(self.output.weight.dtype)
        return Loss(error.square().sum(), torch.ones_like(error).sum())

    def score(self, batch: Batch) -> TokenScores:
        """The negative squared error as score; no number counts as correct."""
        error = self.outputs(batch) - batch.target
        return TokenScores(-error.square(), torch.zeros_like(error).bool(), torch.ones_like(error).bool())

    def predict(self, batch: Batch) -> ClassifierOutput:
        """The predicted numbers (B, K)."""
        outputs = self.outputs(batch)
        return ClassifierOutput(outputs, None, torch.ones_like(outputs).bool())
