"""Decoder stacks of the Transformer (Vaswani et al. 2017, section 3.1): over a memory, or for language models alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from dragoman.models.config import TransformerConfig
from dragoman.models.contracts import Decoder, Memory, State
from dragoman.models.kernels.fused_layers import residual_norm
from dragoman.models.layers.attention import Cache, read_memory
from dragoman.models.layers.config import LinearConfig, LocalConfig, NoPositionsConfig, SegmentsConfig
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.kv_cache import GrowingCache
from dragoman.models.layers.positions import RELATIVE_POSITIONS
from dragoman.models.transformer import Stream, TransformerBlock, TransformerInput, last_norm, relative_positions_of


class DecoderBlock(TransformerBlock):
    """Every position sees itself and the ones before it."""

    def forward(
        self, stream: Stream, past: Any, length: Tensor | int, memory: Cache | None = None, mask: Tensor | None = None
    ) -> tuple[Stream, Any]:
        """(N, T, D) → (N, T, D) and the cache after them; keys and values of the memory, and its mask (B, S)."""
        x, inner = self.enter(stream)
        out, cache = self.attention.extend(inner, past, length)
        if memory is None:
            x, inner = self.between(x, out, self.attention_norm, self.feedforward_norm)
        else:
            x, inner = self.between(x, out, self.attention_norm, self.cross_norm)
            x, inner = self.between(x, self.cross(inner, memory, mask), self.cross_norm, self.feedforward_norm)
        return self.leave(x, self.feedforward(inner)), cache


class DecoderStack(nn.Module):
    """Embedding, causal blocks and last norm; with a width of the memory the blocks attend over one."""

    def __init__(self, config: TransformerConfig, embedding: TokenEmbedding, memory_width: int = 0) -> None:
        super().__init__()
        self.width = config.width
        self.input = TransformerInput(config, embedding)
        self.max_positions = self.input.positions.max_positions
        self.blocks = nn.ModuleList(
            DecoderBlock(config, relative, memory_width) for relative in relative_positions_of(config, causal=True)
        )
        self.norm = last_norm(config)

    @property
    def layers(self) -> list[DecoderBlock]:
        return cast(list[DecoderBlock], list(self.blocks))

    @property
    def units(self) -> Sequence[nn.Module]:
        """Not whole blocks: `start` reads the memory by their cross-attention."""
        return [block.feedforward for block in self.layers]

    def first_state(self, static: Any, rows: int, capacity: int | None, like: Tensor) -> State:
        """The state before the first token: empty caches, growing or with room for `capacity` tokens."""
        caches = tuple(block.attention.init_cache(rows, capacity, like) for block in self.layers)
        length: Tensor | int = 0
        if capacity is not None:
            self.input.positions.reserve(capacity)
            length = torch.zeros((), dtype=torch.long, device=like.device)
        return State(static=static, cache=caches, length=length)

    def read(self, tokens: Tensor, state: State, memories: Sequence[Sequence[Any]]) -> tuple[Tensor, State]:
        """Read tokens (N, T); `memories` has what each block attends over."""
        stream = Stream(self.input(tokens, state.length))
        caches = []
        for block, past, memory in zip(self.layers, state.cache, memories, strict=True):
            stream, present = block(stream, past, state.length, *memory)
            caches.append(present)
        hidden = residual_norm(*stream, self.layers[-1].rate, self.norm)[1]
        return hidden, state._replace(cache=tuple(caches), length=state.length + tokens.shape[1])


class TransformerDecoder(DecoderStack, Decoder):  # type: ignore[override]
    """A stack of decoder blocks over a memory."""

    unused_memory = ("final", "states")

    def __init__(self, config: TransformerConfig, embedding: TokenEmbedding, memory_width: int) -> None:
        super().__init__(config, embedding, memory_width)
        self.shares_cache = all(block.attention.shares_cache for block in self.layers)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (mask, per layer keys and values of the memory); cache = per layer keys and values of the past."""
        memories = read_memory([block.cross for block in self.layers], memory.keys, memory.values)
        return self.first_state((memory.mask, memories), memory.mask.shape[0], capacity, like=memories[0][0])

    def without_cache(self, state: State) -> State:
        if not isinstance(state.length, int) or state.length:  # something came before: it must be kept
            return state
        pairs = zip(self.layers, state.cache, strict=True)
        return state._replace(cache=tuple(block.attention.without_cache(past) for block, past in pairs))

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        mask, memories = state.static
        return self.read(tokens, state, [(memory, mask) for memory in memories])


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
        return State(static=(), cache=carry, length=self.memory)
