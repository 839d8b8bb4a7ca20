"""ELMo: the layers of a bidirectional language model as contextual word vectors (Peters et al. 2018).

`models/bilm.py` trains the language model. Another task then uses this encoder and learns how to weight its layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Depth, Share, Size, SizeOrNone, setting
from dragoman.data.tokenizers import SOS
from dragoman.models.config import WidthEmbedding
from dragoman.models.contracts import Encoder, Memory
from dragoman.models.layers.cells import CellConfig, LSTMConfig
from dragoman.models.layers.embeddings import Embedding
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
