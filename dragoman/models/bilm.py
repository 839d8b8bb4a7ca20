"""Bidirectional language models, which pretrain ELMo's encoder (Peters et al. 2018, section 3.1).

One stack of recurrent layers reads a row forward and predicts the next token, another reads it backward and predicts
the previous token. Both share the embeddings and the output layer. Neither sees the token it predicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Share, setting
from dragoman.data import Batch
from dragoman.data.tokenizers import PAD
from dragoman.models.contracts import BaseModel, Loss, TokenScores
from dragoman.models.encoders.elmo import ElmoEncoder, ElmoEncoderConfig
from dragoman.models.heads.softmax import CrossEntropy, token_scores
from dragoman.models.layers.embeddings import TokenEmbedding


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
