"""Settings and parts that all Transformer stacks share (Vaswani et al. 2017, section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import Tensor, nn

from dragoman.config.settings import Depth, Range, Share, Size, setting
from dragoman.kernels.cpu_dropout import Dropout
from dragoman.kernels.fused_layers import residual_norm
from dragoman.layers.attention import CrossAttention
from dragoman.layers.embeddings import TokenEmbedding
from dragoman.layers.feed_forward import FeedForward
from dragoman.layers.positions import (
    RELATIVE_POSITIONS,
    PositionsConfig,
    SinusoidalConfig,
    build_absolute_positions,
    build_relative_positions,
)
from dragoman.layers.relative_positions import RelativePositions
from dragoman.layers.self_attention import (
    SELF_ATTENTIONS,
    FullConfig,
    LinearConfig,
    SelfAttention,
    SelfAttentionConfig,
)
from dragoman.models.contracts import WidthEmbedding


@dataclass(frozen=True)
class TransformerConfig(WidthEmbedding):
    """A stack of Transformer blocks: an encoder, a decoder, or a language model."""

    kind: ClassVar[str] = "transformer"
    layers: Depth = setting(6, help="number of Transformer blocks")
    width: Size = setting(512, help="size of the hidden vectors (d_model)")
    heads: Size = setting(8, help="number of attention heads; must divide width")
    feedforward: Size = setting(2048, help="inner size of the feed-forward layers")
    dropout: Share = setting(0.1, help="dropout on embeddings and on the output of each layer")
    attention_dropout: Share = setting(
        0.0, help="dropout on attention weights; above 0 no fused attention kernel is used"
    )
    feedforward_dropout: Share = setting(0.0, help="dropout inside the feed-forward layers")
    norm: Literal["pre", "post"] = setting("pre", help="pre-norm, or post-norm as in the paper")
    norm_kind: Literal["layer", "rms"] = setting("layer", help="layer norm, or the RMS norm of T5 and Llama")
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = setting("relu", help="of the feed-forward layers")
    gated: bool = setting(False, help="gated feed-forward layers: SwiGLU with silu, GEGLU with gelu")
    bias: bool = setting(True, help="biases in linear layers and layer norms")
    positions: PositionsConfig = setting(SinusoidalConfig(), help="position encoding")
    attention: SelfAttentionConfig = setting(FullConfig(), help="full, local, segment-wise or linear self-attention")
    score: Literal["scaled-dot", "dot", "cosine"] = setting(
        "scaled-dot", help="score of a query and a key in self- and cross-attention"
    )
    key_heads: Annotated[int, Range(0, None)] = setting(
        0, help="grouped-query attention: number of key and value heads; 0: as many as heads"
    )
    head_width: Annotated[int, Range(0, None)] = setting(0, help="size of one attention head; 0: width / heads")
    scale_embedding: bool = setting(True, help="multiply token embeddings by √width, as in the paper")
    embedding_norm: bool = setting(False, help="a layer norm after the embeddings, as in mBART")
    norm_epsilon: Annotated[float, Range(0.0, 1.0)] = setting(
        0.0, help="what the norms add to the variance; 0: 1e-5 for layer norm, 1e-6 for RMS norm"
    )

    def problems(self) -> Iterator[str]:
        if self.width % self.heads and not self.head_width:
            yield f"heads: found {self.heads}, expected a divisor of width = {self.width}"
        elif self.positions.kind == "rotary" and self.depth % 2:
            yield f"positions: 'rotary' needs heads of an even size, found {self.depth}"
        if self.key_heads and self.heads % self.key_heads:
            yield f"key_heads: found {self.key_heads}, expected 0 or a divisor of heads = {self.heads}"
        if isinstance(self.attention, LinearConfig):
            if type(self.positions) in RELATIVE_POSITIONS:
                yield (
                    f"positions: found {self.positions.kind!r}, but linear attention has no scores of single keys, "
                    "expected 'sinusoidal', 'learned' or 'none'"
                )
            if self.attention_dropout:
                yield (
                    f"attention_dropout: found {self.attention_dropout}, but linear self-attention has no "
                    "attention weights, expected 0"
                )
            if self.score != "scaled-dot":
                yield f"score: found {self.score!r}, but linear attention has no scores, expected 'scaled-dot'"

    @property
    def depth(self) -> int:
        return self.head_width or self.width // self.heads

    @property
    def epsilon(self) -> float:
        """What the norms add to the variance."""
        return self.norm_epsilon or (1e-6 if self.norm_kind == "rms" else 1e-5)

    @property
    def output_width(self) -> int:
        return self.width


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
    """The relative positions of every block."""
    return build_relative_positions(config.positions, config.layers, config.heads, config.depth, causal=causal)


def self_attention(config: TransformerConfig, relative: RelativePositions) -> SelfAttention:
    """The self-attention of a block."""
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


class TransformerBlock(nn.Module):
    """Self-attention, attention over a memory if there is one, feed-forward (section 3.1)."""

    def __init__(self, config: TransformerConfig, relative: RelativePositions, memory_width: int = 0) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
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

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream, and the input of the first sublayer: norm(x) with pre-norm, x with post-norm."""
        return residual_norm(x, None, 0.0, self.attention_norm) if self.pre_norm else (x, x)

    def between(self, x: Tensor, out: Tensor, own: nn.Module, following: nn.Module) -> tuple[Tensor, Tensor]:
        """The residual stream after a sublayer, and the input of the following one.

        Each sublayer has a norm. With pre-norm the stream is x + out and the following norm reads it; with post-norm
        the stream is the sublayer's own norm of x + out.
        """
        if self.pre_norm:
            return residual_norm(x, out, self.rate, following)
        normed = residual_norm(x, out, self.rate, own, stream=True)[1]
        return normed, normed

    def leave(self, x: Tensor, out: Tensor) -> Tensor:
        """The residual stream after the last sublayer."""
        return residual_norm(x, out, self.rate, None if self.pre_norm else self.feedforward_norm, stream=True)[1]

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
