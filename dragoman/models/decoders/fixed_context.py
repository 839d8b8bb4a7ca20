"""Recurrent decoders without attention (Sutskever et al. 2014; Cho et al. 2014)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dragoman.base.config import setting
from dragoman.models.contracts import Encoder, Memory, State
from dragoman.models.decoders.recurrent_parts import (
    CellDecoder,
    CellStack,
    InitialState,
    Readout,
    ReadoutDecoderBase,
    build_dropout,
)
from dragoman.models.layers.embeddings import Embedding
from dragoman.models.traits import ModelContext


@dataclass(frozen=True)
class FixedContextDecoderConfig(ReadoutDecoderBase):
    """Recurrent layers that see the source as one vector (Sutskever et al. 2014; Cho et al. 2014)."""

    kind: ClassVar[str] = "fixed-context"
    context: Literal["start", "every-step"] = setting(
        "start", help="the source sets the initial states only, or also enters every step (Cho et al. 2014)"
    )

    def problems(self) -> Iterator[str]:
        if self.begin == "zero" and self.context == "start":
            yield "begin: found 'zero' with context = 'start', so that the decoder would not see the source"


class FixedContextDecoder(CellDecoder):
    """No attention: the decoder sees the source only as the last state of the encoder."""

    unused_memory = ("keys", "values", "mask")

    def __init__(self, config: FixedContextDecoderConfig, embedding: Embedding, memory_width: int) -> None:
        super().__init__()
        self.every_step = config.context == "every-step"
        context = memory_width if self.every_step else 0
        self.embedding = embedding
        self.width = config.output_width or embedding.width
        self.stack = CellStack(config, embedding.width + context, 0)
        self.begin = InitialState(config, memory_width, self.stack.cells[0].num_states)  # type: ignore[arg-type]
        self.readout = Readout(config.readout, config.width + context + embedding.width, self.width)
        self.dropout = build_dropout(config)

    @classmethod
    def sharing_problems(cls, config: FixedContextDecoderConfig, around: ModelContext) -> Iterator[str]:
        cells = around.cells
        if cells is None:
            yield from super().sharing_problems(config, around)
        elif not (cells.embedding == config.embedding > 0 and config.context == "start"):
            yield 'share_cells: found true, expected equal embedding sizes above 0 and decoder.context = "start"'
        elif (cells.residual_from, cells.norm) != (config.residual_from, False):
            yield "share_cells: found true, expected equal residual_from and an encoder without norm"

    def connect(self, encoder: Encoder, *, share_cells: bool = False) -> None:
        super().connect(encoder)
        if share_cells:
            self.stack.cells = encoder.cells()

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (source vector) where every step reads it; cache = the state of every layer."""
        static = (memory.final[-1],) if self.every_step else ()
        return State(static=static, cache=self.begin(memory), length=0)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        embedded = self.dropout(self.embedding(tokens))  # (N, T, E)
        contexts = [
            vector.repeat_interleave(state.hypotheses, 0)[:, None].expand(-1, tokens.shape[1], -1)
            for vector in state.static
        ]  # (N, T, M)
        states, cache = self.stack(torch.cat([embedded, *contexts], -1), state.cache)
        hidden = self.dropout(self.readout(states, *contexts, embedded))
        return hidden, state._replace(cache=cache, length=state.length + tokens.shape[1])
