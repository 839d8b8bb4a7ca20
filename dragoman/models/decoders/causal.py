"""Stacks that read tokens one after another without any source: what a language model is made of (FIELD A5, K1).

They keep the contract of decoders: `stack(tokens, state) -> (hidden, state)` for any number of tokens. Beside that they
say what of a state is carried over from one segment of running text to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dragoman.config.settings import Share, Size, SizeOrNone, setting
from dragoman.kernels.add_norm import add_norm
from dragoman.layers.attention import Cache
from dragoman.layers.cells import Cell, CellConfig, CellState, LSTMConfig, build_cell
from dragoman.layers.dropout import Dropout, dropout
from dragoman.layers.embeddings import TokenEmbedding
from dragoman.layers.positions import RELATIVE_POSITIONS, NoPositionsConfig
from dragoman.layers.relative_positions import RelativePositions
from dragoman.layers.rnn import VariationalDropout
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


class DroppedEmbedding(TokenEmbedding):
    """Forgets whole words while training: a row of the table is dropped wherever its word stands in the batch.

    Gal and Ghahramani 2016, section 4.2; only rows that are read are multiplied, not the table.
    """

    def __init__(self, vocabulary: int, width: int, pad: int, rate: float) -> None:
        super().__init__(vocabulary, width, pad)
        self.rate = rate

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) → (B, T, D)."""
        embedded = super().forward(tokens)
        if not self.training or self.rate == 0.0:
            return embedded
        keep = self.weight.new_empty(self.weight.shape[0]).bernoulli_(1 - self.rate) / (1 - self.rate)
        return embedded * keep[tokens][..., None]


# Recurrent


@dataclass(frozen=True)
class RecurrentStackConfig:
    """Recurrent layers with the dropouts of AWD-LSTM (Merity et al. 2018)."""

    kind: ClassVar[str] = "recurrent"
    cell: CellConfig = setting(LSTMConfig(), help="recurrent cell")
    layers: Size = setting(3, help="layers in the stack")
    embedding: Size = setting(400, help="size of the embeddings")
    width: Size = setting(1150, help="size of all layers but the last")
    last: SizeOrNone = setting(0, help="size of the last layer; 0: that of the embeddings, so that tables can be tied")
    input_dropout: Share = setting(0.65, help="on embeddings, one mask for all steps of a segment")
    dropout: Share = setting(0.2, help="between layers, one mask for all steps of a segment")
    weight_dropout: Share = setting(0.5, help="on W_hh, one mask for all rows and steps of a segment (DropConnect)")

    @property
    def output_width(self) -> int:
        """Size of the vectors the output layer sees."""
        return self.last or self.embedding

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the embeddings and of every layer."""
        return (self.embedding, *(self.width,) * (self.layers - 1), self.output_width)

    def memory_problems(self, memory: int) -> Iterator[str]:
        """Why so many positions cannot be carried over."""
        if memory:
            yield f"memory: found {memory}, expected 0: recurrent layers always carry their state over"


class CellSequence(nn.Module):
    """A cell over (N, T, I) as a module of its own, so that it can be called with other weights."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """Outputs (N, T, D) and the state after them."""
        return self.cell.run(x, state)


class WeightDropped(nn.Module):
    """A cell whose hidden-to-hidden weights are dropped while training (Wan et al. 2013; Merity et al. 2018, eq. 1).

    The same weights are gone for all steps of a call, so a fused kernel still walks the whole sequence.
    """

    def __init__(self, cell: Cell, rate: float) -> None:
        super().__init__()
        self.sequence, self.rate = CellSequence(cell), rate

    @property
    def cell(self) -> Cell:
        """The cell within."""
        return self.sequence.cell

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """x (N, T, I) → outputs (N, T, D) and the state after them."""
        if not self.training or self.rate == 0.0:
            return self.cell.run(x, state)
        weights = {"cell.hidden_weight": dropout(self.cell.hidden_weight, self.rate)}
        out: tuple[Tensor, CellState] = functional_call(self.sequence, weights, (x, state))
        return out


class RecurrentStack(nn.Module):
    """Embedding and layers; the state is that of every layer's cell, and all of it is carried over."""

    max_positions = None

    def __init__(self, config: RecurrentStackConfig, embedding: TokenEmbedding, memory: int = 0) -> None:
        super().__init__()
        self.embedding = embedding
        self.width = config.output_width
        self.input_dropout = VariationalDropout(config.input_dropout)
        self.dropout = VariationalDropout(config.dropout)
        sizes = config.sizes
        self.layers = nn.ModuleList(
            WeightDropped(build_cell(config.cell, inputs, width), config.weight_dropout)
            for inputs, width in pairwise(sizes)
        )

    def start(self, rows: int, capacity: int | None = None) -> State:
        """Before the first token; it needs no capacity."""
        return State(static=(), cache=tuple(layer.cell.start(rows) for layer in self._layers()), length=0)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (N, T) → hidden (N, T, D)."""
        x = self.input_dropout(self.embedding(tokens))
        after = []
        for number, (layer, before) in enumerate(zip(self._layers(), state.cache, strict=True)):
            x, last = layer(x if number == 0 else self.dropout(x), before)
            after.append(last)
        return x, state._replace(cache=tuple(after), length=state.length + tokens.shape[1])

    def carry(self, rows: int) -> Any:
        """Room for what is carried over."""
        return self.start(rows).cache

    def kept(self, state: State) -> Any:
        """What of a state is carried over."""
        return state.cache

    def resumed(self, carried: Any) -> State:
        """The state that goes on from what was carried."""
        return State(static=(), cache=carried, length=0)

    def _layers(self) -> list[WeightDropped]:
        return [layer for layer in self.layers if isinstance(layer, WeightDropped)]


# Transformer


def memory_problems(config: TransformerConfig, memory: int) -> Iterator[str]:
    """Why a Transformer cannot carry so many positions over."""
    if not memory:
        return
    told: tuple[Any, ...] = (*RELATIVE_POSITIONS, NoPositionsConfig)
    if not isinstance(config.positions, told):
        names = ", ".join(repr(kind.kind) for kind in told)
        yield (
            f"memory: found {memory} with positions = {config.positions.kind!r}, which are counted from the first "
            f"token; expected 0, or one of {names}"
        )
    attention = config.attention
    if isinstance(attention, LinearConfig):
        yield f"memory: found {memory}, but linear attention keeps a sum of all positions, expected 0"
    elif isinstance(attention, SegmentsConfig) and memory != attention.length:
        yield f"memory: found {memory}, expected stack.attention.length = {attention.length}, or 0"
    elif isinstance(attention, LocalConfig) and memory > attention.window:
        yield f"memory: found {memory}, but stack.attention.window = {attention.window} sees no more than that"


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
        if self.pre_norm:  # x + attention(norm(x)), then x + feedforward(norm(x))
            out, cache = self.attention.extend(self.attention_norm(x), past, length)
            x, normed = add_norm(x, self.dropout(out), self.feedforward_norm)
            x = x + self.dropout(self.feedforward(normed))
        else:  # norm(x + attention(x)), then norm(x + feedforward(x))
            out, cache = self.attention.extend(x, past, length)
            _, x = add_norm(x, self.dropout(out), self.attention_norm)
            _, x = add_norm(x, self.dropout(self.feedforward(x)), self.feedforward_norm)
        return x, cache


class CausalTransformer(nn.Module):
    """A decoder-only Transformer (Radford et al. 2018); `memory` positions are carried over (Dai et al. 2019).

    What is carried stands at places 0 … memory−1 and a segment after it, so the shapes and places of all segments but
    the first are alike, however long the text. Keys that are turned by their place are turned back for that.
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
        """Before the first token; cache = per layer the cache so far."""
        like = self.input.embedding.weight
        caches = tuple(block.attention.empty(rows, capacity, like) for block in self._blocks())
        length: Tensor | int = 0
        if capacity is not None:
            self.input.positions.reserve(capacity)
            length = torch.zeros((), dtype=torch.long, device=like.device)
        return State(static=(), cache=caches, length=length)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (N, T) → hidden (N, T, D)."""
        x = self.input(tokens, state.length)
        caches = []
        for block, past in zip(self.blocks, state.cache, strict=True):
            x, present = block(x, past, state.length)
            caches.append(present)
        return self.norm(x), state._replace(cache=tuple(caches), length=state.length + tokens.shape[1])

    def carry(self, rows: int) -> Any:
        """Room for what is carried over; None: nothing is."""
        return self.start(rows, self.memory).cache if self.memory else None

    def kept(self, state: State) -> Any:
        """The last keys and values of every layer, turned to where they stand for the next segment."""
        assert isinstance(state.length, int)
        assert state.length >= self.memory, f"a segment must have at least memory = {self.memory} tokens"
        assert state.length % self.align == 0, f"a segment must be a multiple of {self.align} tokens"
        caches = []
        for block, cache in zip(self._blocks(), state.cache, strict=True):
            key, value = (part[:, :, -self.memory :] for part in cache)
            back = torch.full((self.memory,), self.memory - state.length, device=key.device)
            caches.append((block.attention.relative.rotate(key, back), value))
        return tuple(caches)

    def resumed(self, carried: Any) -> State:
        """The state that goes on from what was carried."""
        return State(static=(), cache=carried, length=self.memory)

    def _blocks(self) -> list[CausalBlock]:
        return [block for block in self.blocks if isinstance(block, CausalBlock)]
