"""Decoder-only Transformers for language models, with the recurrence of Transformer-XL (Dai et al. 2019).

The stack follows the contract of decoders, `stack(tokens, state) -> (hidden, state)`, without a memory. Its carry is
what a segment of running text passes on to the next segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.layers.attention import Cache
from dragoman.layers.dropout import Dropout
from dragoman.layers.embeddings import TokenEmbedding
from dragoman.layers.kv_cache import GrowingCache
from dragoman.layers.positions import RELATIVE_POSITIONS, NoPositionsConfig
from dragoman.layers.relative_positions import RelativePositions
from dragoman.layers.self_attention import LinearConfig, LocalConfig, SegmentsConfig
from dragoman.models.contracts import State
from dragoman.models.transformer import (
    TransformerConfig,
    TransformerInput,
    build_norm,
    feed_forward,
    last_norm,
    relative_positions_of,
    self_attention,
)


def memory_problems(config: TransformerConfig, memory: int) -> Iterator[str]:
    """Errors in the setting `memory` with a Transformer."""
    if not memory:
        return
    relative: tuple[Any, ...] = (*RELATIVE_POSITIONS, NoPositionsConfig)
    if not isinstance(config.positions, relative):
        names = ", ".join(repr(kind.kind) for kind in relative)
        yield (
            f"memory: found {memory} with absolute positions = {config.positions.kind!r}; expected 0, or one of {names}"
        )
    attention = config.attention
    if isinstance(attention, LinearConfig):
        yield f"memory: found {memory}, but linear attention keeps no single positions, expected 0"
    elif isinstance(attention, SegmentsConfig) and memory != attention.length:
        yield f"memory: found {memory}, expected stack.attention.length = {attention.length}, or 0"
    elif isinstance(attention, LocalConfig) and memory > attention.window:
        yield f"memory: found {memory}, expected at most stack.attention.window = {attention.window}"


class CausalBlock(nn.Module):
    """Causal self-attention, then feed-forward: a decoder block without a memory."""

    compile_in_training = True

    def __init__(self, config: TransformerConfig, relative: RelativePositions) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention = self_attention(config, relative)
        self.feedforward = feed_forward(config)
        self.attention_norm = build_norm(config)
        self.feedforward_norm = build_norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, past: Cache, length: Tensor | int) -> tuple[Tensor, Cache]:
        """(N, T, D) → (N, T, D) and the longer cache."""
        if self.pre_norm:
            out, cache = self.attention.extend(self.attention_norm(x), past, length)
            x = x + self.dropout(out)
            return x + self.dropout(self.feedforward(self.feedforward_norm(x))), cache
        out, cache = self.attention.extend(x, past, length)
        x = self.attention_norm(x + self.dropout(out))
        return self.feedforward_norm(x + self.dropout(self.feedforward(x))), cache


class CausalTransformer(nn.Module):
    """A decoder-only Transformer (Radford et al. 2018); `memory` positions are carried over (Dai et al. 2019).

    The carry has positions 0 … memory−1 and the segment follows. So all segments but the first have the same shapes and
    positions, however long the text is. Rotary keys are rotated back to these positions.
    """

    def __init__(self, config: TransformerConfig, embedding: TokenEmbedding, memory: int = 0) -> None:
        super().__init__()
        self.width, self.memory = config.width, memory
        self.align = config.attention.length if isinstance(config.attention, SegmentsConfig) else 1
        self.input = TransformerInput(config, embedding)
        self.max_positions = self.input.positions.max_positions
        self.blocks = nn.ModuleList(
            CausalBlock(config, relative) for relative in relative_positions_of(config, causal=True)
        )
        self.norm = last_norm(config)

    def start(self, rows: int, capacity: int | None = None) -> State:
        """Make the state before the first token; cache = per layer keys and values of the past."""
        like = self.input.embedding.weight
        caches = tuple(block.attention.init_cache(rows, capacity, like) for block in self._blocks())
        length: Tensor | int = 0
        if capacity is not None:
            self.input.positions.reserve(capacity)
            length = torch.zeros((), dtype=torch.long, device=like.device)
        return State(static=(), cache=caches, length=length)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        x = self.input(tokens, state.length)
        caches = []
        for block, past in zip(self.blocks, state.cache, strict=True):
            x, present = block(x, past, state.length)
            caches.append(present)
        return self.norm(x), state._replace(cache=tuple(caches), length=state.length + tokens.shape[1])

    def empty_carry(self, rows: int) -> Any:
        """Zeros of the carry's shapes; None: nothing is carried."""
        return tuple(GrowingCache(*cache) for cache in self.start(rows, self.memory).cache) if self.memory else None

    def carry_of(self, state: State) -> Any:
        """The last keys and values of every layer, rotated to their positions for the next segment."""
        assert isinstance(state.length, int)
        assert state.length >= self.memory, f"a segment must have at least memory = {self.memory} tokens"
        assert state.length % self.align == 0, f"a segment must be a multiple of {self.align} tokens"
        caches = []
        for block, cache in zip(self._blocks(), state.cache, strict=True):
            key, value = (tensor[:, :, -self.memory :] for tensor in cache)
            back = torch.full((self.memory,), self.memory - state.length, device=key.device)
            caches.append(GrowingCache(block.attention.relative.rotate(key, back), value))
        return tuple(caches)

    def resume(self, carry: Any) -> State:
        """The state that continues from a carry."""
        return State(static=(), cache=carry, length=self.memory)

    def _blocks(self) -> list[CausalBlock]:
        return [block for block in self.blocks if isinstance(block, CausalBlock)]
