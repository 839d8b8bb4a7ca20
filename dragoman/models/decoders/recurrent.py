"""Recurrent decoders with attention before the cell: Bahdanau et al. 2015, and with more layers GNMT (Wu et al. 2016).

The bottom layer runs step by step. The upper layers run over the whole sequence at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dragoman.base.config import setting
from dragoman.models.contracts import Memory, State
from dragoman.models.decoders.recurrent_parts import (
    CellDecoder,
    CellStack,
    InitialState,
    Readout,
    ReadoutDecoderBase,
    build_dropout,
)
from dragoman.models.layers.cells import build_cell
from dragoman.models.layers.embeddings import Embedding
from dragoman.models.layers.recurrence import unrolled
from dragoman.models.layers.rnn_attention import AdditiveConfig, RNNAttentionConfig, build_rnn_attention


@dataclass(frozen=True)
class RecurrentDecoderConfig(ReadoutDecoderBase):
    """Recurrent layers; the previous state of the bottom layer attends, and the context enters the cell."""

    kind: ClassVar[str] = "recurrent"
    attention: RNNAttentionConfig = setting(AdditiveConfig(), help="attention over the source")
    context_to: Literal["bottom", "all"] = setting(
        "bottom", help="which layers the context enters: the bottom one, or all (GNMT)"
    )


class RecurrentDecoder(CellDecoder):
    """s_i = f(s_{i−1}, y_{i−1}, c_i) with c_i attended by s_{i−1}; readout from s_i, y_{i−1} and c_i."""

    def __init__(self, config: RecurrentDecoderConfig, embedding: Embedding, memory_width: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.width = config.output_width or embedding.width
        self.to_all = config.context_to == "all"
        self.attention = build_rnn_attention(config.attention, config.width, memory_width)
        context = self.attention.width
        self.bottom = build_cell(config.cell, embedding.width + context, config.width)
        self.upper = CellStack(config, config.width, context if self.to_all else 0, first=2)
        self.begin = InitialState(config, memory_width, self.bottom.num_states)
        self.readout = Readout(config.readout, config.width + context + embedding.width, self.width)
        self.dropout = build_dropout(config)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (mask, what the attention read); cache = the state of every layer. Needs no capacity."""
        static = (memory.mask, self.attention.read(memory.keys, memory.values))
        return State(static=static, cache=self.begin(memory), length=0)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        mask, memory = state.static
        embedded = self.dropout(self.embedding(tokens))  # (N, T, E)
        bottom, *others = state.cache
        outputs, contexts = [], []
        with unrolled(self.bottom, embedded) as step:
            for t in range(tokens.shape[1]):
                context = self.attention(bottom[0][:, None], memory, mask, state.length + t)[:, 0]  # c_i from s_{i−1}
                bottom = step(t, context, bottom)  # s_i = f(s_{i−1}, y_{i−1}, c_i)
                outputs.append(bottom[0])
                contexts.append(context)
        context = torch.stack(contexts, 1)  # (N, T, C)
        states, upper = self.upper(torch.stack(outputs, 1), tuple(others), context if self.to_all else None)
        hidden = self.dropout(self.readout(states, context, embedded))
        return hidden, state._replace(cache=(bottom, *upper), length=state.length + tokens.shape[1])
