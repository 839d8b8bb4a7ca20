"""The Transformer (Vaswani et al. 2017, section 3.1): blocks, encoder, decoder, and the stack of a language model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from dragoman.models.config import TransformerConfig
from dragoman.models.contracts import Decoder, Encoder, Memory, State
from dragoman.models.kernels.cpu_dropout import Dropout
from dragoman.models.kernels.fused_layers import residual_norm
from dragoman.models.layers.attention import Cache, CrossAttention, read_memory
from dragoman.models.layers.config import LinearConfig, LocalConfig, NoPositionsConfig, SegmentsConfig
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.feed_forward import FeedForward
from dragoman.models.layers.kv_cache import GrowingCache
from dragoman.models.layers.masking import masked_mean
from dragoman.models.layers.positions import (
    RELATIVE_POSITIONS,
    RelativePositions,
    build_absolute_positions,
    build_relative_positions,
)
from dragoman.models.layers.self_attention import SELF_ATTENTIONS


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
        width, heads, dropout = config.width, config.heads, config.attention_dropout
        options: dict[str, Any] = {
            "key_heads": config.key_heads,
            "score": config.score,
            "bias": config.bias,
            "head_width": config.head_width,
        }
        kind = SELF_ATTENTIONS[type(config.attention)]
        self.attention = kind(width, heads, dropout, config=config.attention, relative=relative, **options)
        if memory_width:
            self.cross = CrossAttention(width, heads, memory_width, dropout, **options)
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


class EncoderBlock(TransformerBlock):
    """Every position sees the real ones."""

    def forward(self, stream: Stream, mask: Tensor) -> Stream:
        """(B, S, D) → (B, S, D)."""
        x, inner = self.enter(stream)
        x, inner = self.between(x, self.attention(inner, mask), self.attention_norm, self.feedforward_norm)
        return self.leave(x, self.feedforward(inner))


def through(blocks: nn.ModuleList, x: Tensor, mask: Tensor, norm: nn.Module) -> Tensor:
    """(B, S, D) through a stack of encoder blocks, and the norm after them."""
    stream, rate = Stream(x), 0.0
    for block in blocks:
        assert isinstance(block, EncoderBlock)
        stream, rate = block(stream, mask), block.rate
    return residual_norm(*stream, rate, norm)[1]


class TransformerEncoder(Encoder):
    """A stack of encoder blocks; the final state is the mean over real positions."""

    def __init__(self, config: TransformerConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.width = config.width
        self.input = TransformerInput(config, embedding)
        self.blocks = nn.ModuleList(
            EncoderBlock(config, relative) for relative in relative_positions_of(config, causal=False)
        )
        self.norm = last_norm(config)

    @property
    def units(self) -> Sequence[nn.Module]:  # type: ignore[override]
        return list(self.blocks)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        x = through(self.blocks, self.input(source, 0), mask, self.norm)
        return Memory(keys=x, values=x, mask=mask, final=(masked_mean(x, mask),))


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
