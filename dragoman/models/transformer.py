"""The Transformer (FIELD C9): Vaswani et al. 2017, "Attention Is All You Need", section 3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from dragoman.layers.attention import Cache, CrossAttention, SelfAttention
from dragoman.layers.blocks import FeedForward, Residual, TokenEmbedding
from dragoman.layers.positions import POSITIONS, PositionsConfig, SinusoidalConfig
from dragoman.models.core import Memory, State
from dragoman.settings import Range, setting

Share = Annotated[float, Range(0.0, 1.0, exclusive_maximum=True)]
Size = Annotated[int, Range(1, None)]


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
    norm: Literal["pre", "post"] = setting("pre", help="layer norm before each layer, or after the sum as in 2017")
    activation: Literal["relu", "gelu", "silu"] = setting("relu", help="inside the feed-forward layers")
    positions: PositionsConfig = setting(SinusoidalConfig(), help="how a token's place is told")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if self.width % self.heads:
            yield f"heads: found {self.heads}, expected a divisor of width = {self.width}"

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

    def __init__(self, config: TransformerConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = POSITIONS[type(config.positions)](config.positions, config.width)  # type: ignore[arg-type]
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, start: Tensor | int) -> Tensor:
        """(N, T) → (N, T, D)."""
        out: Tensor = self.dropout(self.positions(self.embedding(tokens) * self.embedding.width**0.5, start))
        return out


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config.width, config.heads, config.attention_dropout)
        self.feedforward = FeedForward(config.width, config.feedforward, config.activation, config.feedforward_dropout)
        self.around_attention = Residual(config.width, config.norm, config.dropout)
        self.around_feedforward = Residual(config.width, config.norm, config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        around = self.around_attention
        x = around.leave(x, self.attention(around.enter(x), mask))
        around = self.around_feedforward
        return around.leave(x, self.feedforward(around.enter(x)))


class TransformerEncoder(nn.Module):
    """Tokens to memory; its final state is the mean over real positions."""

    def __init__(self, config: TransformerConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.width = config.width
        self.input = TransformerInput(config, embedding)
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source (B, S), mask (B, S)."""
        x = self.input(source, 0)
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        real = mask[:, :, None].to(x.dtype)
        mean = (x * real).sum(1) / real.sum(1).clamp(min=1)  # (B, D)
        return Memory(keys=x, values=x, mask=mask, final=(mean,))


class DecoderBlock(nn.Module):
    """Self-attention over the past, attention over the memory, feed-forward."""

    def __init__(self, config: TransformerConfig, memory_width: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config.width, config.heads, config.attention_dropout)
        self.cross = CrossAttention(config.width, config.heads, memory_width, config.attention_dropout)
        self.feedforward = FeedForward(config.width, config.feedforward, config.activation, config.feedforward_dropout)
        self.around_attention = Residual(config.width, config.norm, config.dropout)
        self.around_cross = Residual(config.width, config.norm, config.dropout)
        self.around_feedforward = Residual(config.width, config.norm, config.dropout)

    def forward(
        self, x: Tensor, past: Cache, length: Tensor | int, memory: Cache, mask: Tensor
    ) -> tuple[Tensor, Cache]:
        """(N, T, D) → (N, T, D) and the longer cache."""
        around = self.around_attention
        out, present = self.attention.extend(around.enter(x), past, length)
        x = around.leave(x, out)
        around = self.around_cross
        x = around.leave(x, self.cross(around.enter(x), memory, mask))
        around = self.around_feedforward
        return around.leave(x, self.feedforward(around.enter(x))), present


class TransformerDecoder(nn.Module):
    """Memory and target tokens to hidden vectors."""

    def __init__(self, config: TransformerConfig, embedding: TokenEmbedding, memory_width: int) -> None:
        super().__init__()
        self.width = config.width
        self.input = TransformerInput(config, embedding)
        self.maximum = self.input.positions.maximum
        self.blocks = nn.ModuleList(DecoderBlock(config, memory_width) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """fixed = (mask, per layer the memory's keys and values); moving = per layer the cache so far."""
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
        return State(fixed=(memory.mask, tuple(read)), moving=tuple(caches), length=length)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (N, T) → hidden (N, T, D)."""
        mask, memories = state.fixed
        x = self.input(tokens, state.length)
        caches = []
        for block, past, memory in zip(self.blocks, state.moving, memories, strict=True):
            x, present = block(x, past, state.length, memory, mask)
            caches.append(present)
        return self.norm(x), state._replace(moving=tuple(caches), length=state.length + tokens.shape[1])
