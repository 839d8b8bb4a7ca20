"""A feed-forward network over a fixed window of source embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Depth, Share, Size, setting
from dragoman.models.contracts import Encoder, Memory
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.feed_forward import ACTIVATIONS
from dragoman.models.layers.masking import crop_to_maximum


@dataclass(frozen=True)
class DenseEncoderConfig:
    """Dense layers over the concatenated embeddings of a fixed number of positions."""

    kind: ClassVar[str] = "dense"
    max_positions: Size = setting(32, help="longest source, in tokens with <eos>; also the number of memory entries")
    layers: Depth = setting(2, help="number of hidden layers")
    embedding: Size = setting(64, help="size of the source embeddings")
    hidden: Size = setting(512, help="size of the hidden layers")
    width: Size = setting(256, help="size of each memory entry")
    activation: Literal["relu", "gelu", "silu"] = setting("relu", help="activation of the hidden layers")
    dropout: Share = setting(0.1, help="dropout on embeddings and after every hidden layer")


class DenseEncoder(Encoder):
    """(max_positions · embedding) → hidden → … → (max_positions · width).

    A memory entry depends on the whole source and belongs to no token, so all entries are real, whatever the source's
    length. The final state is their mean.
    """

    entries_are_tokens = False

    def __init__(self, config: DenseEncoderConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.width, self.max_positions = config.width, config.max_positions
        self.embedding = embedding
        inputs = [config.max_positions * config.embedding] + [config.hidden] * (config.layers - 1)
        self.layers = nn.ModuleList(nn.Linear(size, config.hidden) for size in inputs)
        self.entries = nn.Linear(config.hidden, config.max_positions * config.width)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        x, mask = crop_to_maximum(self.dropout(self.embedding(source)), mask, self.max_positions)
        x = x * mask[:, :, None].to(x.dtype)
        x = F.pad(x, (0, 0, 0, self.max_positions - x.shape[1])).flatten(1)  # (B, max_positions · E)
        for layer in self.layers:
            x = self.dropout(self.activation(layer(x)))
        entries = self.entries(x).view(-1, self.max_positions, self.width)
        all_real = mask.new_ones(entries.shape[:2])
        return Memory(keys=entries, values=entries, mask=all_real, final=(entries.mean(1),))
