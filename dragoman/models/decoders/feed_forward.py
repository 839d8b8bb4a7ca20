"""A stack of position-wise feed-forward layers, the simplest decoder of non-autoregressive models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from dragoman.config.settings import Depth, Share, Size, setting
from dragoman.layers.dropout import Dropout
from dragoman.layers.feed_forward import FeedForward
from dragoman.layers.masking import masked_mean
from dragoman.models.contracts import Encoder, Memory


@dataclass(frozen=True)
class FeedForwardStackConfig:
    """The same feed-forward layers at every position; positions do not see each other."""

    kind: ClassVar[str] = "feed-forward"
    layers: Depth = setting(1, help="number of feed-forward layers")
    width: Size = setting(512, help="size of the hidden vectors")
    feedforward: Size = setting(2048, help="inner size of the feed-forward layers")
    activation: Literal["relu", "gelu", "silu"] = setting("relu", help="activation of the feed-forward layers")
    dropout: Share = setting(0.1, help="dropout on the input and on the output of each layer")

    @property
    def embedding(self) -> int:
        """Width of the vectors it reads."""
        return self.width


class FeedForwardStack(Encoder):
    """Pre-norm residual feed-forward layers with a last norm."""

    def __init__(self, config: FeedForwardStackConfig, embedding: nn.Module) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = embedding
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            FeedForward(config.width, config.feedforward, config.activation, 0.0) for _ in range(config.layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(config.layers))
        self.residual_dropout = Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source: what the embedding reads; mask (B, S)."""
        x = self.dropout(self.embedding(source))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + self.residual_dropout(layer(norm(x)))
        x = self.norm(x)
        return Memory(keys=x, values=x, mask=mask, final=(masked_mean(x, mask),))
