"""Settings and parts that all Transformer stacks share (Vaswani et al. 2017, section 3)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from dragoman.models.config import TransformerConfig
from dragoman.models.kernels.cpu_dropout import Dropout
from dragoman.models.kernels.fused_layers import residual_norm
from dragoman.models.layers.attention import CrossAttention
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.feed_forward import FeedForward
from dragoman.models.layers.positions import build_absolute_positions, build_relative_positions
from dragoman.models.layers.relative_positions import RelativePositions
from dragoman.models.layers.self_attention import SELF_ATTENTIONS, SelfAttention


class TransformerInput(nn.Module):
    """Scaled token embedding plus position encoding, then dropout (sections 3.4 and 3.5)."""

    def __init__(self, config: TransformerConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.scale = embedding.width**0.5 if config.scale_embedding else 1.0
        self.positions = build_absolute_positions(config.positions, config.width)
        self.norm = build_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens: Tensor, start: Tensor | int) -> Tensor:
        """(N, T) → (N, T, D); `start` is the position of the first token."""
        return self.dropout(self.norm(self.positions(self.embedding(tokens) * self.scale, start)))


def relative_positions_of(config: TransformerConfig, *, causal: bool) -> list[RelativePositions]:
    return build_relative_positions(config.positions, config.layers, config.heads, config.depth, causal=causal)


def self_attention(config: TransformerConfig, relative: RelativePositions) -> SelfAttention:
    return SELF_ATTENTIONS[type(config.attention)](
        config.width,
        config.heads,
        config.attention_dropout,
        config=config.attention,
        key_heads=config.key_heads,
        score=config.score,
        bias=config.bias,
        relative=relative,
        head_width=config.head_width,
    )


class Stream(NamedTuple):
    """The residual stream between two blocks: x + dropout(out), summed by whoever reads it, together with a norm."""

    x: Tensor  # (N, T, D)
    out: Tensor | None = None  # of the last sublayer


class TransformerBlock(nn.Module):
    """Self-attention, attention over a memory if there is one, feed-forward (section 3.1)."""

    def __init__(self, config: TransformerConfig, relative: RelativePositions, memory_width: int = 0) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.defers = True  # the next block sums what the last sublayer adds
        self.attention = self_attention(config, relative)
        if memory_width:
            self.cross = CrossAttention(
                config.width,
                config.heads,
                memory_width,
                config.attention_dropout,
                key_heads=config.key_heads,
                score=config.score,
                bias=config.bias,
                head_width=config.head_width,
            )
        self.feedforward = FeedForward(
            config.width, config.feedforward, config.activation, config.feedforward_dropout, config.bias, config.gated
        )
        self.attention_norm = build_norm(config)
        if memory_width:
            self.cross_norm = build_norm(config)
        self.feedforward_norm = build_norm(config)
        self.dropout = Dropout(config.dropout)

    def enter(self, stream: Stream) -> tuple[Tensor, Tensor]:
        """The residual stream, and the input of the first sublayer: norm(x) with pre-norm, x with post-norm."""
        return residual_norm(*stream, self.rate, self.attention_norm if self.pre_norm else None)

    def between(self, x: Tensor, out: Tensor, own: nn.Module, following: nn.Module) -> tuple[Tensor, Tensor]:
        """The residual stream after a sublayer, and the input of the following one.

        Each sublayer has a norm. With pre-norm the stream is x + out and the following norm reads it; with post-norm
        the stream is the sublayer's own norm of x + out.
        """
        if self.pre_norm:
            return residual_norm(x, out, self.rate, following)
        normed = residual_norm(x, out, self.rate, own, stream=True)[1]
        return normed, normed

    def leave(self, x: Tensor, out: Tensor) -> Stream:
        """The residual stream after the last sublayer."""
        if self.pre_norm and self.defers:
            return Stream(x, out)
        if self.pre_norm:
            return Stream(residual_norm(x, out, self.rate, None)[0])
        return Stream(residual_norm(x, out, self.rate, self.feedforward_norm, stream=True)[1])

    @property
    def rate(self) -> float:
        return self.dropout.p if self.training else 0.0


def build_norm(config: TransformerConfig) -> nn.Module:
    """Layer norm (Ba et al. 2016), or RMS norm without a bias (Zhang and Sennrich 2019)."""
    if config.norm_kind == "rms":  # torch's default epsilon depends on the data type
        return nn.RMSNorm(config.width, eps=config.epsilon)
    return nn.LayerNorm(config.width, eps=config.epsilon, bias=config.bias)


def last_norm(config: TransformerConfig) -> nn.Module:
    """The norm after the last block; a post-norm block ends with its own."""
    return build_norm(config) if config.norm == "pre" else nn.Identity()
