"""Decoder-only Transformers for language models, with the recurrence of Transformer-XL (Dai et al. 2019).

The stack follows the contract of decoders, `stack(tokens, state) -> (hidden, state)`, without a memory. Its carry is
what a segment of running text passes on to the next segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dragoman.layers.embeddings import TokenEmbedding
from dragoman.layers.kv_cache import GrowingCache
from dragoman.layers.positions import RELATIVE_POSITIONS, NoPositionsConfig
from dragoman.layers.self_attention import LinearConfig, LocalConfig, SegmentsConfig
from dragoman.models.contracts import State
from dragoman.models.decoders.transformer import DecoderStack
from dragoman.models.transformer import TransformerConfig


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


class CausalTransformer(DecoderStack):
    """A decoder-only Transformer (Radford et al. 2018); `memory` positions are carried over (Dai et al. 2019).

    The carry has positions 0 … memory−1 and the segment follows. So all segments but the first have the same shapes and
    positions, however long the text is. Rotary keys are rotated back to these positions.
    """

    def __init__(self, config: TransformerConfig, embedding: TokenEmbedding, memory: int = 0) -> None:
        super().__init__(config, embedding)
        self.memory = memory
        self.align = config.attention.length if isinstance(config.attention, SegmentsConfig) else 1

    def start(self, rows: int, capacity: int | None = None) -> State:
        """Make the state before the first token; cache = per layer keys and values of the past."""
        return self.first_state((), rows, capacity, like=self.input.embedding.weight)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self.read(tokens, state, [()] * len(self.layers))

    def empty_carry(self, rows: int) -> Any:
        """Zeros of the carry's shapes; None: nothing is carried."""
        return tuple(GrowingCache(*cache) for cache in self.start(rows, self.memory).cache) if self.memory else None

    def carry_of(self, state: State) -> Any:
        """The last keys and values of every layer, rotated to their positions for the next segment."""
        assert isinstance(state.length, int)
        assert state.length >= self.memory, f"a segment must have at least memory = {self.memory} tokens"
        assert state.length % self.align == 0, f"a segment must be a multiple of {self.align} tokens"
        caches = []
        for block, cache in zip(self.layers, state.cache, strict=True):
            key, value = (tensor[:, :, -self.memory :] for tensor in cache)
            back = torch.full((self.memory,), self.memory - state.length, device=key.device)
            caches.append(GrowingCache(block.attention.relative.rotate(key, back), value))
        return tuple(caches)

    def resume(self, carry: Any) -> State:
        """The state that continues from a carry."""
        return State(static=(), cache=carry, length=self.memory)
