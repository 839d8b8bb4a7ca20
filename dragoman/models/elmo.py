"""ELMo (Peters et al. 2018): a bidirectional language model, and its layers as contextual word vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Depth, Share, Size, SizeOrNone, setting
from dragoman.data import Batch
from dragoman.data.tokenizers import PAD, SOS
from dragoman.models.config import WidthEmbedding
from dragoman.models.contracts import BaseModel, Encoder, Loss, Memory, TokenScores
from dragoman.models.heads.softmax import CrossEntropy, token_scores
from dragoman.models.layers.cells import CellConfig, LSTMConfig
from dragoman.models.layers.embeddings import Embedding, TokenEmbedding
from dragoman.models.layers.recurrence import last_output
from dragoman.models.layers.rnn import Unidirectional


@dataclass(frozen=True)
class ElmoEncoderConfig(WidthEmbedding):
    """A weighted mean of the layers of a bidirectional language model."""

    kind: ClassVar[str] = "elmo"
    cell: CellConfig = setting(LSTMConfig(), help="recurrent cell")
    layers: Depth = setting(2, help="number of layers in each direction")
    width: Size = setting(512, help="size of the embeddings and of every layer in each direction")
    residual_from: SizeOrNone = setting(2, help="first layer with a residual connection, counted from 1; 0: none")
    dropout: Share = setting(0.1, help="dropout on embeddings, between layers and on the output")


class ElmoEncoder(Encoder):
    """Memory of both directions side by side, one entry per token; its final state is that of the two top layers."""

    def __init__(self, config: ElmoEncoderConfig, embedding: Embedding) -> None:
        super().__init__()
        self.width = 2 * config.width
        self.embedding = embedding
        self.dropout = nn.Dropout(config.dropout)
        self.forward_layers = self._stack(config, backward=False)
        self.backward_layers = self._stack(config, backward=True)
        self.layer_weights = nn.Parameter(torch.zeros(config.layers + 1))  # s before its softmax; embeddings included
        self.scale = nn.Parameter(torch.ones(()))  # γ

    def _stack(self, config: ElmoEncoderConfig, backward: bool) -> nn.ModuleList:
        width, first = config.width, config.residual_from
        return nn.ModuleList(
            Unidirectional(config.cell, width, width, backward, self.dropout, residual=0 < first <= number)
            for number in range(1, config.layers + 1)
        )

    def layers(self, source: Tensor, mask: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Outputs (B, 1+S, D) of the embeddings and of every layer, forward and backward, and the mask (B, 1+S).

        The rows start with <sos>, so that the forward model also predicts the first token.
        """
        real = F.pad(mask, (1, 0), value=True)
        embedded = self.embedding(F.pad(source, (1, 0), value=SOS))
        outputs = []
        for stack in (self.forward_layers, self.backward_layers):
            states = [embedded]
            for layer in stack:
                states.append(layer(states[-1], real)[0])
            outputs.append(states)
        return outputs[0], outputs[1], real

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source (B, S), mask (B, S) → γ Σ_l softmax(s)_l [forward_l; backward_l] (Peters et al. 2018, eq. 1)."""
        ahead, back, real = self.layers(source, mask)
        weights = self.layer_weights.softmax(0)
        mixed = torch.stack([torch.cat(pair, -1) for pair in zip(ahead, back, strict=True)], -1) @ weights
        x = self.dropout(self.scale * mixed)[:, 1:]  # (B, S, 2D)
        final = torch.cat([last_output(ahead[-1], real.sum(1)), back[-1][:, 0]], -1)
        return Memory(keys=x, values=x, mask=mask, final=(final,))


@dataclass(frozen=True)
class BiLMConfig:
    """A language model in both directions, to pretrain the encoder of other tasks."""

    kind: ClassVar[str] = "bilm"
    tie: bool = setting(True, help="embeddings and output layer share one table")
    label_smoothing: Share = setting(0.0, help="share of the target probability spread over the vocabulary")
    encoder: ElmoEncoderConfig = setting(ElmoEncoderConfig(), help="the encoder that is pretrained")


class BiLM(BaseModel):
    """Predicts every token of a row twice: from the tokens before it and from those after it."""

    has_unused_parameters = True  # the weights of the layers are for other tasks

    def __init__(self, config: BiLMConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        embedding = TokenEmbedding(vocabulary, config.encoder.width, PAD)
        embedding.sides = ("source",)
        self.encoder = ElmoEncoder(config.encoder, embedding)
        self.output = nn.Linear(config.encoder.width, vocabulary)
        self.cross_entropy = CrossEntropy()
        nn.init.zeros_(self.output.bias)
        if config.tie:
            self.output.weight = embedding.weight
        else:
            nn.init.normal_(self.output.weight, std=config.encoder.width**-0.5)

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (B, 2S, V) and their targets (B, 2S): forward predictions, then backward predictions.

        The backward model does not predict <eos>, the last token of a row.
        """
        source, mask = batch.source.data, batch.source.mask
        ahead, back, _ = self.encoder.layers(source, mask)
        hidden = torch.cat([ahead[-1][:, :-1], back[-1][:, 1:]], 1)  # the backward state at i predicts token i − 1
        before = F.pad(source[:, :-1], (1, 0), value=PAD).masked_fill(~mask, PAD)
        logits: Tensor = self.output(self.encoder.dropout(hidden))
        return logits, torch.cat([source, before], 1)

    def forward(self, batch: Batch) -> Loss:
        """Summed cross-entropy of both directions and the number of predicted tokens."""
        logits, target = self.logits(batch)
        smoothing = self.config.label_smoothing if self.training else 0.0
        return Loss(self.cross_entropy(logits, target, smoothing).sum(), (target != PAD).sum())

    def score(self, batch: Batch) -> TokenScores:
        """Scores (B, 2S) in the order of `logits`."""
        return token_scores(*self.logits(batch))
