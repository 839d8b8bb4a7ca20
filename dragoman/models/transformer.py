"""The Transformer (FIELD C9) and its relatives: Vaswani et al. 2017, "Attention Is All You Need", section 3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from dragoman.config.settings import Range, Share, Size, setting
from dragoman.kernels.add_norm import add_norm
from dragoman.layers.attention import Cache, CrossAttention
from dragoman.layers.dropout import Dropout
from dragoman.layers.embeddings import TokenEmbedding
from dragoman.layers.feed_forward import FeedForward, GatedFeedForward
from dragoman.layers.masking import masked_mean
from dragoman.layers.normalisation import NORMS
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
from dragoman.models.contracts import Memory, State


@dataclass(frozen=True)
class TransformerConfig:
    """A stack of attention and feed-forward layers; the same settings serve encoder and decoder."""

    kind: ClassVar[str] = "transformer"
    layers: Size = setting(6, help="blocks in the stack")
    width: Size = setting(512, help="size of the vectors that flow through")
    heads: Size = setting(8, help="attention heads; must divide width")
    feedforward: Size = setting(2048, help="inner size of the feed-forward layers")
    dropout: Share = setting(0.1, help="on embeddings and on what each layer adds")
    attention_dropout: Share = setting(0.0, help="on attention weights; above 0 it leaves the fused kernel")
    feedforward_dropout: Share = setting(0.0, help="inside the feed-forward layers")
    norm: Literal["pre", "post"] = setting("pre", help="norm before each layer, or after the sum as in 2017")
    norm_kind: Literal["layer", "rms"] = setting("layer", help="layer norm, or the root mean square of T5 and Llama")
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = setting("relu", help="inside the feed-forward layers")
    gated: bool = setting(False, help="feed-forward layers with a gate: SwiGLU with silu, GEGLU with gelu")
    bias: bool = setting(True, help="biases in linear layers and layer norms")
    positions: PositionsConfig = setting(SinusoidalConfig(), help="how a token's place is told")
    attention: SelfAttentionConfig = setting(FullConfig(), help="what self-attention sees, and at what cost")
    score: Literal["scaled-dot", "dot", "cosine"] = setting(
        "scaled-dot", help="how self- and cross-attention compare a query with a key"
    )
    key_heads: Annotated[int, Range(0, None)] = setting(
        0, help="heads of keys and values, each shared by several of queries; 0: as many as heads"
    )

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if self.width % self.heads:
            yield f"heads: found {self.heads}, expected a divisor of width = {self.width}"
        elif self.positions.kind == "rotary" and self.width // self.heads % 2:
            yield f"positions: 'rotary' turns pairs, found width / heads = {self.width // self.heads}, expected it even"
        if self.key_heads and self.heads % self.key_heads:
            yield f"key_heads: found {self.key_heads}, expected 0 or a divisor of heads = {self.heads}"
        if isinstance(self.attention, LinearConfig):
            if type(self.positions) in RELATIVE_POSITIONS:
                yield (
                    f"positions: found {self.positions.kind!r}, but linear attention never meets a single key, "
                    "expected 'sinusoidal', 'learned' or 'none'"
                )
            if self.attention_dropout:
                yield (
                    f"attention_dropout: found {self.attention_dropout}, but linear self-attention has no weights to "
                    "drop, expected 0"
                )
            if self.score != "scaled-dot":
                yield f"score: found {self.score!r}, but linear attention has no scores, expected 'scaled-dot'"

    @property
    def embedding(self) -> int:
        """Width of the token embeddings this stack reads."""
        return self.width

    @property
    def output_width(self) -> int:
        """Width of what the output layer sees."""
        return self.width


class TransformerInput(nn.Module):
    """Scaled embedding plus positions, then dropout (section 3.4 and 3.5)."""

    compile_in_training = True

    def __init__(self, config: TransformerConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = build_absolute_positions(config.positions, config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens: Tensor, start: Tensor | int) -> Tensor:
        """(N, T) → (N, T, D)."""
        out: Tensor = self.dropout(self.positions(self.embedding(tokens) * self.embedding.width**0.5, start))
        return out


def relative_positions_of(config: TransformerConfig, *, causal: bool) -> list[RelativePositions]:
    """What the self-attention of every block is told about positions."""
    return build_relative_positions(
        config.positions, config.layers, config.heads, config.width // config.heads, causal=causal
    )


def self_attention(config: TransformerConfig, relative: RelativePositions) -> SelfAttention:
    """The chosen kind, as a block needs it."""
    return SELF_ATTENTIONS[type(config.attention)](
        config.width,
        config.heads,
        config.attention_dropout,
        config=config.attention,
        key_heads=config.key_heads,
        score=config.score,
        bias=config.bias,
        relative=relative,
    )


def feed_forward(config: TransformerConfig) -> FeedForward | GatedFeedForward:
    """With or without a gate."""
    kind = GatedFeedForward if config.gated else FeedForward
    return kind(config.width, config.feedforward, config.activation, config.feedforward_dropout, config.bias)


def build_norm(config: TransformerConfig) -> nn.Module:
    """Layer norm or RMS norm."""
    return NORMS[config.norm_kind](config.width, config.bias)


def last_norm(config: TransformerConfig) -> nn.Module:
    """The norm after the last block; a post-norm block ends with its own."""
    return build_norm(config) if config.norm == "pre" else nn.Identity()


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward (section 3.1)."""

    compile_in_training = True

    def __init__(self, config: TransformerConfig, relative: RelativePositions) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention = self_attention(config, relative)
        self.feedforward = feed_forward(config)
        self.attention_norm = build_norm(config)
        self.feedforward_norm = build_norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        if self.pre_norm:  # x + attention(norm(x)), then x + feedforward(norm(x))
            out = self.attention(self.attention_norm(x), mask)
            x, normed = add_norm(x, self.dropout(out), self.feedforward_norm)
            x = x + self.dropout(self.feedforward(normed))
        else:  # norm(x + attention(x)), then norm(x + feedforward(x))
            _, x = add_norm(x, self.dropout(self.attention(x, mask)), self.attention_norm)
            _, x = add_norm(x, self.dropout(self.feedforward(x)), self.feedforward_norm)
        return x


class TransformerEncoder(nn.Module):
    """Tokens to memory; its final state is the mean over real positions."""

    def __init__(self, config: TransformerConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.width = config.width
        self.input = TransformerInput(config, embedding)
        self.blocks = nn.ModuleList(
            EncoderBlock(config, relative) for relative in relative_positions_of(config, causal=False)
        )
        self.norm = last_norm(config)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source (B, S), mask (B, S)."""
        x = self.input(source, 0)
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        return Memory(keys=x, values=x, mask=mask, final=(masked_mean(x, mask),))


class DecoderBlock(nn.Module):
    """Causal self-attention, attention over the memory, feed-forward (section 3.1)."""

    compile_in_training = True

    def __init__(self, config: TransformerConfig, relative: RelativePositions, memory_width: int) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention = self_attention(config, relative)
        self.cross = CrossAttention(
            config.width,
            config.heads,
            memory_width,
            config.attention_dropout,
            key_heads=config.key_heads,
            score=config.score,
            bias=config.bias,
        )
        self.feedforward = feed_forward(config)
        self.attention_norm = build_norm(config)
        self.cross_norm = build_norm(config)
        self.feedforward_norm = build_norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Tensor, past: Cache, length: Tensor | int, memory: Cache, mask: Tensor
    ) -> tuple[Tensor, Cache]:
        """(N, T, D) → (N, T, D) and the longer cache."""
        if self.pre_norm:  # x + attention(norm(x)), x + cross(norm(x)), x + feedforward(norm(x))
            out, cache = self.attention.extend(self.attention_norm(x), past, length)
            x, normed = add_norm(x, self.dropout(out), self.cross_norm)
            x, normed = add_norm(x, self.dropout(self.cross(normed, memory, mask)), self.feedforward_norm)
            x = x + self.dropout(self.feedforward(normed))
        else:  # norm(x + attention(x)), norm(x + cross(x)), norm(x + feedforward(x))
            out, cache = self.attention.extend(x, past, length)
            _, x = add_norm(x, self.dropout(out), self.attention_norm)
            _, x = add_norm(x, self.dropout(self.cross(x, memory, mask)), self.cross_norm)
            _, x = add_norm(x, self.dropout(self.feedforward(x)), self.feedforward_norm)
        return x, cache


class TransformerDecoder(nn.Module):
    """Memory and target tokens to hidden vectors."""

    unused_memory = ("final", "states")

    def __init__(self, config: TransformerConfig, embedding: TokenEmbedding, memory_width: int) -> None:
        super().__init__()
        self.width = config.width
        self.input = TransformerInput(config, embedding)
        self.max_positions = self.input.positions.max_positions
        self.blocks = nn.ModuleList(
            DecoderBlock(config, relative, memory_width) for relative in relative_positions_of(config, causal=True)
        )
        self.norm = last_norm(config)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (mask, per layer the memory's keys and values); cache = per layer the cache so far."""
        rows = memory.mask.shape[0]
        read, caches = [], []
        for block in self.blocks:
            assert isinstance(block, DecoderBlock)
            read.append(block.cross.read(memory.keys, memory.values))
            caches.append(block.attention.empty(rows, capacity, like=read[-1][0]))
        length: Tensor | int = 0
        if capacity is not None:
            self.input.positions.reserve(capacity)
            length = torch.zeros((), dtype=torch.long, device=memory.mask.device)
        return State(static=(memory.mask, tuple(read)), cache=tuple(caches), length=length)

    def once(self, state: State) -> State:
        """The same state for a single call: nothing is kept of what is read then, so that no gradient waits for it."""
        plain = (type(block.attention) is SelfAttention for block in self.blocks if isinstance(block, DecoderBlock))
        cache = tuple(() if simple else past for simple, past in zip(plain, state.cache, strict=True))
        return state._replace(cache=cache)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (N, T) → hidden (N, T, D)."""
        mask, memories = state.static
        x = self.input(tokens, state.length)
        caches = []
        for block, past, memory in zip(self.blocks, state.cache, memories, strict=True):
            x, present = block(x, past, state.length, memory, mask)
            caches.append(present)
        return self.norm(x), state._replace(cache=tuple(caches), length=state.length + tokens.shape[1])
