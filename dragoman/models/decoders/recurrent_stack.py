"""Recurrent language model layers with the regularisation of AWD-LSTM (Merity et al. 2018).

The stack follows the contract of decoders, `stack(tokens, state) -> (hidden, state)`, without a memory. Its carry is
what a segment of running text passes on to the next segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.func import functional_call

from dragoman.base.config import Depth, Share, Size, SizeOrNone, setting
from dragoman.models.contracts import State
from dragoman.models.kernels.cpu_dropout import dropout
from dragoman.models.layers.cells import CellConfig, LSTMConfig, build_cell
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.recurrence import Cell, CellState
from dragoman.models.layers.rnn import VariationalDropout


class EmbeddingDropout(TokenEmbedding):
    """Drops whole words in training: a word is zero wherever it occurs in the batch (Gal and Ghahramani 2016, 4.2).

    Only the embeddings of the batch are multiplied, not the table.
    """

    def __init__(self, vocabulary: int, width: int, pad: int, rate: float) -> None:
        super().__init__(vocabulary, width, pad)
        self.rate = rate

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = super().forward(tokens)
        if not self.training or self.rate == 0.0:
            return embedded
        keep = self.weight.new_empty(self.weight.shape[0]).bernoulli_(1 - self.rate) / (1 - self.rate)
        return embedded * keep[tokens][..., None]


@dataclass(frozen=True)
class RecurrentStackConfig:
    """Recurrent layers with the regularisation of AWD-LSTM (Merity et al. 2018)."""

    kind: ClassVar[str] = "recurrent"
    cell: CellConfig = setting(LSTMConfig(), help="recurrent cell")
    layers: Depth = setting(3, help="number of layers")
    embedding: Size = setting(400, help="size of the embeddings")
    width: Size = setting(1150, help="size of all layers except the last")
    last: SizeOrNone = setting(0, help="size of the last layer; 0: that of the embeddings, so that both can be tied")
    input_dropout: Share = setting(0.65, help="dropout on embeddings, one mask for all steps of a segment")
    dropout: Share = setting(0.2, help="dropout between layers, one mask for all steps of a segment")
    weight_dropout: Share = setting(0.5, help="DropConnect on W_hh, one mask for all rows and steps of a segment")

    @property
    def output_width(self) -> int:
        return self.last or self.embedding

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.embedding, *(self.width,) * (self.layers - 1), self.output_width)

    def memory_problems(self, memory: int) -> Iterator[str]:
        if memory:
            yield f"memory: found {memory}, expected 0: recurrent layers always carry their state over"


class WeightDropout(nn.Module):
    """DropConnect on the hidden-to-hidden weights of a cell (Wan et al. 2013; Merity et al. 2018, eq. 1).

    All steps of a call share one mask, so a fused kernel can still run the whole sequence.
    """

    def __init__(self, cell: Cell, rate: float) -> None:
        super().__init__()
        self.sequence, self.rate = nn.ModuleDict({"cell": cell}), rate  # the names of parameters in checkpoints

    @property
    def cell(self) -> Cell:
        cell = self.sequence["cell"]
        assert isinstance(cell, Cell)
        return cell

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """x (N, T, I) → outputs (N, T, D) and the state after them."""
        if not self.training or self.rate == 0.0:
            out: tuple[Tensor, CellState] = self.cell(x, state)
            return out
        weights = {"hidden_weight": dropout(self.cell.hidden_weight, self.rate)}
        return functional_call(self.cell, weights, (x, state))


class RecurrentStack(nn.Module):
    """Embedding and recurrent layers; the carry is the state of every layer."""

    max_positions = None

    def __init__(self, config: RecurrentStackConfig, embedding: TokenEmbedding, memory: int = 0) -> None:
        super().__init__()
        self.embedding = embedding
        self.width = config.output_width
        self.input_dropout = VariationalDropout(config.input_dropout)
        self.dropout = VariationalDropout(config.dropout)
        sizes = config.sizes
        self.layers = nn.ModuleList(
            WeightDropout(build_cell(config.cell, inputs, width), config.weight_dropout)
            for inputs, width in pairwise(sizes)
        )

    def start(self, rows: int, capacity: int | None = None) -> State:
        """Make the state before the first token; it needs no capacity."""
        return State(static=(), cache=tuple(layer.cell.start(rows) for layer in self._layers()), length=0)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        x = self.input_dropout(self.embedding(tokens))
        after = []
        for number, (layer, before) in enumerate(zip(self._layers(), state.cache, strict=True)):
            x, last = layer(x if number == 0 else self.dropout(x), before)
            after.append(last)
        return x, state._replace(cache=tuple(after), length=state.length + tokens.shape[1])

    def empty_carry(self, rows: int) -> Any:
        return self.start(rows).cache

    def carry_of(self, state: State) -> Any:
        """The part of a state that the next segment starts from."""
        return state.cache

    def resume(self, carry: Any) -> State:
        return State(static=(), cache=carry, length=0)

    def _layers(self) -> list[WeightDropout]:
        return [layer for layer in self.layers if isinstance(layer, WeightDropout)]
