"""The Transformer decoder (Vaswani et al. 2017, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.layers.attention import Cache, CrossAttention
from dragoman.layers.dropout import Dropout
from dragoman.layers.embeddings import TokenEmbedding
from dragoman.layers.relative_positions import RelativePositions
from dragoman.layers.self_attention import SelfAttention
from dragoman.models.contracts import Decoder, Memory, State
from dragoman.models.transformer import (
    TransformerConfig,
    TransformerInput,
    build_norm,
    feed_forward,
    last_norm,
    relative_positions_of,
    self_attention,
)


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
            head_width=config.head_width,
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
        if self.pre_norm:
            out, cache = self.attention.extend(self.attention_norm(x), past, length)
            x = x + self.dropout(out)
            x = x + self.dropout(self.cross(self.cross_norm(x), memory, mask))
            return x + self.dropout(self.feedforward(self.feedforward_norm(x))), cache
        out, cache = self.attention.extend(x, past, length)
        x = self.attention_norm(x + self.dropout(out))
        x = self.cross_norm(x + self.dropout(self.cross(x, memory, mask)))
        return self.feedforward_norm(x + self.dropout(self.feedforward(x))), cache


class TransformerDecoder(Decoder):
    """A stack of decoder blocks."""

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
        self.shares_cache = all(attention.shares_cache for attention in self._attentions())

    def _attentions(self) -> list[SelfAttention]:
        return [block.attention for block in self.blocks if isinstance(block, DecoderBlock)]

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (mask, per layer keys and values of the memory); cache = per layer keys and values of the past."""
        rows = memory.mask.shape[0]
        memories, caches = [], []
        for block in self.blocks:
            assert isinstance(block, DecoderBlock)
            memories.append(block.cross.read(memory.keys, memory.values))
            caches.append(block.attention.init_cache(rows, capacity, like=memories[-1][0]))
        length: Tensor | int = 0
        if capacity is not None:
            self.input.positions.reserve(capacity)
            length = torch.zeros((), dtype=torch.long, device=memory.mask.device)
        return State(static=(memory.mask, tuple(memories)), cache=tuple(caches), length=length)

    def without_cache(self, state: State) -> State:
        if not isinstance(state.length, int) or state.length:  # something came before: it must be kept
            return state
        layers = zip(self._attentions(), state.cache, strict=True)
        return state._replace(cache=tuple(attention.without_cache(past) for attention, past in layers))

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        mask, memories = state.static
        x = self.input(tokens, state.length)
        caches = []
        for block, past, memory in zip(self.blocks, state.cache, memories, strict=True):
            x, present = block(x, past, state.length, memory, mask)
            caches.append(present)
        return self.norm(x), state._replace(cache=tuple(caches), length=state.length + tokens.shape[1])
