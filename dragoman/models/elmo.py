"""Language models that read both ways, and their states as features (FIELD K3; Peters et al. 2018, ELMo).

One stack of recurrent layers reads a row forward and tells the next token, another reads it backward and tells the one
before; both share embeddings and output. Neither sees what it has to tell. Another task then reads, at every token, a
learned mean of all layers of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Share, Size, SizeOrNone, setting
from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import PAD, SOS
from dragoman.layers.blocks import Embedding, TokenEmbedding
from dragoman.layers.cells import CellConfig, LSTMConfig
from dragoman.layers.rnn import Unidirectional, last_real
from dragoman.models.contracts import Loss, Memory, TokenScores
from dragoman.models.heads.softmax import CrossEntropy, full_precision


@dataclass(frozen=True)
class ElmoEncoderConfig:
    """Features of a two-way language model: a learned mean of its layers."""

    kind: ClassVar[str] = "elmo"
    cell: CellConfig = setting(LSTMConfig(), help="recurrent cell")
    layers: Size = setting(2, help="layers of each direction")
    width: Size = setting(512, help="size of the embeddings and of every layer of each direction")
    residual_from: SizeOrNone = setting(2, help="first layer whose input is added to its output; 0: none")
    dropout: Share = setting(0.1, help="on embeddings, between layers and on the features")

    @property
    def embedding(self) -> int:
        """Width of the token embeddings this stack reads."""
        return self.width


class ElmoEncoder(nn.Module):
    """Tokens to memory, one entry a token, both directions side by side; its final state is that of the top layers."""

    def __init__(self, config: ElmoEncoderConfig, embedding: Embedding) -> None:
        super().__init__()
        self.width = 2 * config.width
        self.embedding = embedding
        self.dropout = nn.Dropout(config.dropout)
        self.ahead, self.back = (self._stack(config, mirrored) for mirrored in (False, True))
        self.mix = nn.Parameter(torch.zeros(config.layers + 1))  # of the embeddings and of every layer
        self.scale = nn.Parameter(torch.ones(()))

    def _stack(self, config: ElmoEncoderConfig, mirrored: bool) -> nn.ModuleList:
        width, first = config.width, config.residual_from
        return nn.ModuleList(
            Unidirectional(config.cell, width, width, mirrored, self.dropout, residual=0 < first <= number)
            for number in range(1, config.layers + 1)
        )

    def layers(self, source: Tensor, mask: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """What each direction knows after <sos> and every token, from the embeddings up, each (B, 1+S, D); the mask.

        Before a row stands <sos>, so that its first token is told too.
        """
        real = F.pad(mask, (1, 0), value=True)
        embedded = self.embedding(F.pad(source, (1, 0), value=SOS))
        found = []
        for stack in (self.ahead, self.back):
            states = [embedded]
            for layer in stack:
                states.append(layer(states[-1], real)[0])
            found.append(states)
        return found[0], found[1], real

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source (B, S), mask (B, S) → scale · Σ softmax(mix)_l [ahead_l; back_l] (Peters et al. 2018, eq. 1)."""
        ahead, back, real = self.layers(source, mask)
        shares = self.mix.softmax(0)
        mixed = torch.stack([torch.cat(pair, -1) for pair in zip(ahead, back, strict=True)], -1) @ shares
        x = self.dropout(self.scale * mixed)[:, 1:]  # (B, S, 2D)
        final = torch.cat([last_real(ahead[-1], real.sum(1)), back[-1][:, 0]], -1)
        return Memory(keys=x, values=x, mask=mask, final=(final,))


@dataclass(frozen=True)
class BiLMConfig:
    """A language model in both directions, for other tasks to start from."""

    kind: ClassVar[str] = "bilm"
    tie: bool = setting(True, help="embeddings and output share one table")
    label_smoothing: Share = setting(0.0, help="share of the target probability spread over the vocabulary")
    encoder: ElmoEncoderConfig = setting(ElmoEncoderConfig(), help="what reads the rows")


class BiLM(nn.Module):
    """Tells every token of a row twice: from those before it, and from those after it."""

    def __init__(self, config: BiLMConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        embedding = TokenEmbedding(vocabulary, config.encoder.width, PAD)
        self.encoder = ElmoEncoder(config.encoder, embedding)
        self.output = nn.Linear(config.encoder.width, vocabulary)
        self.costs = CrossEntropy()
        nn.init.zeros_(self.output.bias)
        if config.tie:
            self.output.weight = embedding.weight
        else:
            nn.init.normal_(self.output.weight, std=config.encoder.width**-0.5)

    @property
    def max_positions(self) -> int | None:
        """It writes nothing."""
        return None

    @property
    def has_unused_parameters(self) -> bool:
        """The mean of layers is for other tasks."""
        return True

    @property
    def graph_blockers(self) -> list[str]:
        """Why a training step cannot be captured and repeated by the GPU; nothing stands in the way."""
        return []

    def set_step(self, step: int) -> None:
        """Nothing here follows a schedule."""

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Scores (B, 2S, V) and what they are of (B, 2S): from before every token of a row, then from after it.

        The last token of a row, its <eos>, is told from before alone.
        """
        source, mask = batch.source, batch.source_mask
        ahead, back, _ = self.encoder.layers(source, mask)
        hidden = torch.cat([ahead[-1][:, :-1], back[-1][:, 1:]], 1)  # the backward state at place i tells place i−1
        before = F.pad(source[:, :-1], (1, 0), value=PAD).masked_fill(~mask, PAD)
        logits: Tensor = self.output(self.encoder.dropout(hidden))
        return logits, torch.cat([source, before], 1)

    def forward(self, batch: Batch) -> Loss:
        """Summed cross-entropy of both directions, and how many tokens were told."""
        logits, target = self.logits(batch)
        smoothing = self.config.label_smoothing if self.training else 0.0
        return Loss(self.costs(logits, target, smoothing).sum(), (target != PAD).sum())

    def score(self, batch: Batch) -> TokenScores:
        """Of every token from before it, then of every token but <eos> from after it."""
        logits, target = self.logits(batch)
        mask = target != PAD
        chosen = full_precision(logits).log_softmax(-1).gather(-1, target[:, :, None])[:, :, 0]
        return TokenScores(chosen * mask, (logits.argmax(-1) == target) & mask, mask)
