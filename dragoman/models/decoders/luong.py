"""Recurrent decoders with attention after the cell (Luong et al. 2015)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dragoman.base.config import SizeOrNone, setting
from dragoman.models.contracts import Memory, State
from dragoman.models.decoders.recurrent_parts import (
    CellDecoder,
    CellStack,
    InitialState,
    RecurrentDecoderBase,
    build_dropout,
)
from dragoman.models.layers import recurrence
from dragoman.models.layers.embeddings import Embedding
from dragoman.models.layers.linear import StepLinear
from dragoman.models.layers.recurrence import CellState
from dragoman.models.layers.rnn_attention import GeneralConfig, RNNAttentionConfig, build_rnn_attention


@dataclass(frozen=True)
class LuongDecoderConfig(RecurrentDecoderBase):
    """Recurrent layers; the new state of the top layer attends, and enters the output with its context."""

    kind: ClassVar[str] = "luong"
    attention: RNNAttentionConfig = setting(GeneralConfig(), help="attention over the source")
    input_feeding: bool = setting(True, help="the attentional vector of a step enters the next one")
    attentional: SizeOrNone = setting(0, help="size of the attentional vector; 0: that of the embeddings")
    readout: Literal["tanh", "concatenate"] = setting(
        "tanh", help="input of the output layer: tanh(W [context; state]), or [state; context] as it is"
    )

    @property
    def output_width(self) -> int:
        """Size of the attentional vectors; 0 for [state; context], whose size depends on the encoder."""
        return 0 if self.readout == "concatenate" else self.attentional or self.embedding

    def problems(self) -> Iterator[str]:
        if self.readout == "concatenate":
            if self.attentional:
                yield f"attentional: found {self.attentional}, expected 0: readout = 'concatenate' has no such vector"
        elif self.embedding == 0 and self.attentional == 0:
            yield "attentional: found 0, expected a size, since one-hot embeddings have none to take"


class LuongDecoder(CellDecoder):
    """h_t by the cells, c_t attended by h_t, ã_t = tanh(W_c [c_t; h_t]) (Luong et al. 2015, eq. 5) or [h_t; c_t]."""

    def __init__(self, config: LuongDecoderConfig, embedding: Embedding, memory_width: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.attention = build_rnn_attention(config.attention, config.width, memory_width)
        both = self.attention.width + config.width
        self.combine = StepLinear(both, config.output_width, bias=False) if config.readout == "tanh" else None
        self.width = config.output_width or both
        self.input_feeding = config.input_feeding
        self.stack = CellStack(config, embedding.width + (self.width if self.input_feeding else 0), 0)
        self.begin = InitialState(config, memory_width, self.stack.cells[0].num_states)  # type: ignore[arg-type]
        self.dropout = build_dropout(config)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (mask, what the attention read); cache = (states of the layers, last attentional vector or ())."""
        static = (memory.mask, self.attention.read(memory.keys, memory.values))
        last = (memory.keys.new_zeros(memory.mask.shape[0], self.width),) if self.input_feeding else ()
        return State(static=static, cache=(self.begin(memory), last), length=0)

    def attend(self, states: Tensor, state: State, position: int) -> Tensor:
        """h_t → ã_t: (N, T, D) → (N, T, width)."""
        mask, memory = state.static
        context = self.attention(states, memory, mask, state.length + position)
        if self.combine is None:
            return torch.cat([states, context], -1)
        return torch.tanh(self.combine(torch.cat([context, states], -1)))

    def feed(self, embedded: Tensor, state: State) -> tuple[Tensor, tuple[CellState, ...]]:
        """Embedded tokens (N, T, E) → ã of every step, each fed into the next one, and the states of the layers."""
        cells, (last,) = state.cache
        memory = self.attention.as_dot_products(*state.static)
        if fed := recurrence.feed(self.stack.only_cell(), embedded, cells[0], last, memory, self.combine):
            return fed[0], (fed[1],)
        attentional: list[Tensor] = []
        masks = self.stack.masks(embedded)
        for t, token in enumerate(embedded.unbind(1)):
            states, cells = self.stack(torch.cat([token, last], -1)[:, None], cells, None, masks)
            attentional.append(self.attend(states, state, t))
            last = attentional[-1][:, 0]
        return torch.cat(attentional, 1), cells

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        embedded = self.dropout(self.embedding(tokens))  # (N, T, E)
        cells, last = state.cache
        if not self.input_feeding:
            states, cells = self.stack(embedded, cells)
            hidden = self.attend(states, state, 0)
        else:
            with recurrence.loop(tokens.shape[1]):
                hidden, cells = self.feed(embedded, state)
            last = (hidden[:, -1],)
        length = state.length + tokens.shape[1]
        return self.dropout(hidden), state._replace(cache=(cells, last), length=length)
