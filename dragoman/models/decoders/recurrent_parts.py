"""Settings and parts that all recurrent decoders share: layers of cells, initial states, readouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from dragoman.base.config import Depth, Share, Size, SizeOrNone, setting
from dragoman.models.contracts import Decoder, Encoder, Memory
from dragoman.models.kernels.cpu_dropout import Dropout
from dragoman.models.layers.cells import CellConfig, LSTMConfig, build_cell
from dragoman.models.layers.recurrence import Cell, CellState
from dragoman.models.layers.rnn import VariationalDropout
from dragoman.models.traits import ModelContext


@dataclass(frozen=True)
class StateReadout:
    """The state of the top layer."""

    kind: ClassVar[str] = "state"


@dataclass(frozen=True)
class TanhReadout:
    """tanh(W [state; context; embedded token])."""

    kind: ClassVar[str] = "tanh"
    width: SizeOrNone = setting(0, help="size; 0: that of the embeddings, so that the output table can be tied")


@dataclass(frozen=True)
class MaxoutReadout:
    """The larger of each pair of W [state; context; embedded token] (Cho et al. 2014; Bahdanau et al. 2015, A.2.2)."""

    kind: ClassVar[str] = "maxout"
    width: Size = setting(500, help="size; every entry is the larger of a pair")


ReadoutConfig = StateReadout | TanhReadout | MaxoutReadout


class Readout(nn.Module):
    """The input of the output layer."""

    def __init__(self, config: ReadoutConfig, inputs: int, width: int) -> None:
        super().__init__()
        self.kind = config.kind
        outputs = 2 * width if isinstance(config, MaxoutReadout) else width
        self.linear = nn.Identity() if isinstance(config, StateReadout) else nn.Linear(inputs, outputs)

    def forward(self, states: Tensor, *others: Tensor) -> Tensor:
        """Each (N, T, …)."""
        if self.kind == "state":
            return states
        out: Tensor = self.linear(torch.cat([states, *others], -1))
        if self.kind == "tanh":
            return torch.tanh(out)
        return out.view(*out.shape[:-1], -1, 2).amax(-1)


@dataclass(frozen=True)
class RecurrentDecoderBase:
    """Settings of every recurrent decoder."""

    cell: CellConfig = setting(LSTMConfig(), help="recurrent cell")
    layers: Depth = setting(1, help="number of layers")
    embedding: SizeOrNone = setting(256, help="size of the target embeddings; 0: one-hot vectors without weights")
    width: Size = setting(512, help="size of the recurrent state")
    begin: Literal["project", "copy", "zero"] = setting(
        "project", help="initial states: tanh(W final) of the encoder, its own states layer by layer, or zeros"
    )
    residual_from: SizeOrNone = setting(
        0, help="first layer with a residual connection, counted from 1; 0: none (GNMT: 3)"
    )
    dropout: Share = setting(0.2, help="dropout on embeddings, between layers and before the output layer")
    variational: bool = setting(False, help="one dropout mask for all steps of a sequence (Gal and Ghahramani 2016)")


@dataclass(frozen=True)
class ReadoutDecoderBase(RecurrentDecoderBase):
    """Settings of recurrent decoders with a readout."""

    readout: ReadoutConfig = setting(TanhReadout(), help="input of the output layer")

    @property
    def output_width(self) -> int:
        """Size of the input of the output layer; 0: that of the one-hot embeddings."""
        return self.width if isinstance(self.readout, StateReadout) else self.readout.width or self.embedding


class CellStack(nn.Module):
    """Layers of one kind of cell; every layer reads `extra` beside the output of the layer below."""

    def __init__(self, config: RecurrentDecoderBase, inputs: int, extra: int, first: int = 1) -> None:
        super().__init__()
        self.residual_from = config.residual_from
        self.first = first  # the number of the lowest layer, counted from 1
        widths = [config.width if layer > 1 else inputs for layer in range(first, config.layers + 1)]
        self.cells = nn.ModuleList(build_cell(config.cell, size + extra, config.width) for size in widths)
        self.dropout = build_dropout(config)
        self.width = config.width

    def masks(self, like: Tensor) -> list[Tensor] | None:
        """One mask per layer of variational dropout, for a caller that runs step by step; None: no such dropout."""
        if not (self.training and isinstance(self.dropout, VariationalDropout)):
            return None
        return [self.dropout(like.new_ones(like.shape[0], 1, self.width)) for _ in self.cells]

    def only_cell(self) -> Cell | None:
        """The cell of a stack of one layer."""
        cell = self.cells[0]
        return cell if isinstance(cell, Cell) and len(self.cells) == self.first == 1 else None

    def forward(
        self,
        x: Tensor,
        states: tuple[CellState, ...],
        extra: Tensor | None = None,
        masks: list[Tensor] | None = None,
    ) -> tuple[Tensor, tuple[CellState, ...]]:
        """x (N, T, I) → outputs (N, T, D) of the top layer and the states of all layers after them."""
        after = []
        for number, (cell, state) in enumerate(zip(self.cells, states, strict=True), start=self.first):
            inputs = x
            if number > 1:
                inputs = self.dropout(x) if masks is None else x * masks[number - self.first]
            out, state = cell(inputs if extra is None else torch.cat([inputs, extra], -1), state)
            after.append(state)
            x = x + out if 0 < self.residual_from <= number else out
        return x, tuple(after)


def build_dropout(config: RecurrentDecoderBase) -> nn.Module:
    """Ordinary or variational dropout on (N, T, D)."""
    return VariationalDropout(config.dropout) if config.variational else Dropout(config.dropout)


class InitialState(nn.Module):
    """Initial states from the encoder: tanh(W final) (Bahdanau et al. 2015, A.2.2), a copy of its states, or zeros."""

    def __init__(self, config: RecurrentDecoderBase, memory_width: int, num_states: int) -> None:
        super().__init__()
        self.kind, self.num_states, self.layers, self.width = config.begin, num_states, config.layers, config.width
        size = config.width * num_states
        count = config.layers if config.begin == "project" else 0
        self.project = nn.ModuleList(nn.Linear(memory_width, size) for _ in range(count))

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        """The state of every layer, each tensor (B, D).

        Top layers are paired; where the encoder has fewer layers, its top layer serves the rest.
        """
        if self.kind == "copy":
            assert len(memory.states) == self.layers, "the encoder has no such states"
            return memory.states
        if self.kind == "zero":
            zeros = memory.keys.new_zeros(memory.keys.shape[0], self.width)
            return tuple((zeros,) * self.num_states for _ in range(self.layers))
        states = []
        unused = max(0, len(memory.final) - self.layers)  # the lowest encoder layers, where there are more
        for layer, project in enumerate(self.project, start=unused):
            final = memory.final[min(layer, len(memory.final) - 1)]
            states.append(tuple(torch.tanh(project(final)).chunk(self.num_states, -1)))
        return tuple(states)


class CellDecoder(Decoder):
    """A decoder of recurrent cells, which may start from the states of the encoder's cells."""

    begin: InitialState

    @classmethod
    def problems(cls, config: Any, around: ModelContext) -> Iterator[str]:
        cells = around.cells
        if cells is not None and cells[:3] != (config.cell, config.layers, config.width):
            cells = None  # its cells are not those of the decoder
        if config.begin == "copy" and cells is None:
            yield (
                "decoder.begin: 'copy' needs a recurrent encoder of one direction with the decoder's cell, layers "
                "and width"
            )
        if around.share_cells:
            yield from cls.sharing_problems(config, around._replace(cells=cells))
        if config.variational and config.dropout and around.in_chunks:
            yield (
                "decoder.variational: found true, but truncate and word-by-word forcing run a sequence in chunks, each "
                "with a mask of its own; expected false, or forcing.passes above 0"
            )
        if config.residual_from == 1 or config.residual_from > config.layers:
            yield (
                f"decoder.residual_from: found {config.residual_from}, expected 0 or from 2 to the number of layers "
                f"({config.layers})"
            )

    @classmethod
    def sharing_problems(cls, config: Any, around: ModelContext) -> Iterator[str]:
        """Why the decoder cannot use the cells of the encoder."""
        yield (
            "share_cells: found true, expected a recurrent encoder of one direction and a fixed-context "
            "decoder with the same cell, layers and width"
        )

    def connect(self, encoder: Encoder, *, share_cells: bool = False) -> None:
        if self.begin.kind == "copy":
            encoder.keep_states()
