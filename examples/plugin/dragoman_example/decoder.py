"""A decoder with minimal gated units (Zhou et al. 2016) and dot-product attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

import dragoman
from dragoman.extend import Decoder, DecoderEntry, Memory, Size, State, setting


@dataclass(frozen=True)
class MinimalGRUConfig:
    """One layer of minimal gated units."""

    kind: ClassVar[str] = "minimal-gru"
    width: Size = setting(256, help="size of the target embeddings and of the states")

    @property
    def embedding(self) -> int:
        return self.width

    @property
    def output_width(self) -> int:
        return self.width


class MinimalGRUDecoder(Decoder):
    """f = σ(W_f [h; x]); h ← (1 − f) h + f tanh(W_h [f h; x]), where x = [y; context]."""

    unused_memory = ("final", "states")

    def __init__(self, config: MinimalGRUConfig, embedding: nn.Module, memory_width: int) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = embedding
        inputs = 2 * config.width + memory_width
        self.query = nn.Linear(config.width, memory_width)
        self.gate = nn.Linear(inputs, config.width)
        self.candidate = nn.Linear(inputs, config.width)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        hidden = memory.keys.new_zeros(memory.keys.shape[0], self.width)
        return State(static=(memory.keys, memory.values, memory.mask), cache=(hidden,), length=0)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        keys, values, mask = state.static  # (B, S, D), (B, S, D), (B, S)
        (hidden,) = state.cache  # (N, W): the rows of the k hypotheses of the first source, then of the second, …
        outputs = []
        for embedded in self.embedding(tokens).unbind(1):  # (N, W)
            query = self.query(hidden).view(keys.shape[0], state.hypotheses, -1)  # (B, k, D)
            scores = (query @ keys.transpose(1, 2)).masked_fill(~mask[:, None], -torch.inf)  # (B, k, S)
            x = torch.cat([embedded, (scores.softmax(-1) @ values).flatten(0, 1)], -1)  # (N, W + D)
            forget = self.gate(torch.cat([hidden, x], -1)).sigmoid()
            hidden = hidden.lerp(self.candidate(torch.cat([forget * hidden, x], -1)).tanh(), forget)
            outputs.append(hidden)
        return torch.stack(outputs, 1), state._replace(cache=(hidden,), length=state.length + tokens.shape[1])


dragoman.register(
    DecoderEntry(
        MinimalGRUConfig,
        MinimalGRUDecoder,
        example=MinimalGRUConfig(width=8),
        larger_example=MinimalGRUConfig(width=48),
    )
)
