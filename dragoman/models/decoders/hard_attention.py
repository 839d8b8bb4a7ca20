"""Hard attention with exact marginalisation (Wu et al. 2018; hard monotonic attention: Wu and Cotterell 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Range, Size, setting
from dragoman.models.contracts import Memory
from dragoman.models.decoders.monotone import (
    PADDING,
    Actions,
    MonotoneDecoder,
    MonotoneDecoderBase,
    Source,
    Written,
    forward_bias,
)
from dragoman.models.heads.softmax import full_precision, log_probabilities
from dragoman.models.layers.embeddings import Embedding


@dataclass(frozen=True)
class HardAttentionDecoderConfig(MonotoneDecoderBase):
    """Every token is written at one source position, a latent variable that is summed out exactly."""

    kind: ClassVar[str] = "hard-attention"
    order: Annotated[int, Range(0, 1)] = setting(
        1, help="the next position depends on the target so far alone (0), or also on the position before (1)"
    )
    monotonic: bool = setting(True, help="the position never moves left")
    jump: Size = setting(4, help="order 1: how far a position may move in one step")

    def problems(self) -> Iterator[str]:
        if self.order == 1 and not self.monotonic:
            yield "monotonic: found false, expected true with order = 1"


class HardAttentionDecoder(MonotoneDecoder):
    """p(y_t | y_<t, x) = Σ_j p(a_t = j | …) p(y_t | h_t, s_j) (Wu and Cotterell 2019, eqs. 2 to 5).

    Order 0 scores positions by h_t · W s_j, renormalised over j ≥ a_{t−1} if monotonic. Order 1 draws the move
    a_t − a_{t−1} from 0 … jump by a softmax over U [h_t; s_{a_{t−1}}].
    """

    def __init__(self, config: HardAttentionDecoderConfig, embedding: Embedding, memory_width: int) -> None:
        super().__init__(config, embedding, memory_width)
        self.order, self.monotonic, self.jump = config.order, config.monotonic, config.jump
        if config.order == 0:
            self.key = nn.Linear(memory_width, config.width, bias=False)
        else:
            self.key = nn.Linear(memory_width, config.jump + 1)
            self.query = nn.Linear(config.width, config.jump + 1, bias=False)

    def first_actions(self, like: Tensor) -> tuple[Tensor, ...]:
        return (like.new_zeros(*like.shape, self.width),)

    def read(self, memory: Memory) -> tuple[Tensor, Tensor]:
        return forward_bias(memory.mask, monotone=self.monotonic), self.key(memory.keys)

    def actions(self, states: Tensor, source: Source) -> Actions:
        """A softmax over tokens at every position, and the moves between positions."""
        rows, length, width = states.shape
        keys = source.keys
        by_source = states.reshape(keys.shape[0], -1, width)  # (B, k·T, D)
        if self.order == 0:
            scores = full_precision(by_source @ keys.transpose(1, 2))[:, :, None]  # (B, k·T, 1, S)
            total = (scores + source.bias[:, None]).logsumexp(-1)  # (B, k·T, S) over the positions in reach of each
            steps: tuple[Tensor, ...] = (-total, scores[:, :, 0])
        else:
            scores = full_precision(self.query(by_source)[:, :, None] + keys[:, None])  # (B, k·T, S, jump + 1)
            real = source.bias.diagonal(dim1=1, dim2=2) == 0.0  # (B, S)
            reached = F.pad(real, (0, self.jump)).unfold(1, self.jump + 1, 1)  # (B, S, jump + 1): i + move is real
            bias = torch.zeros(reached.shape, device=real.device, dtype=torch.float32).masked_fill(~reached, PADDING)
            steps = ((scores + bias[:, None]).log_softmax(-1),)
        steps = tuple(step.reshape(rows, length, *step.shape[2:]) for step in steps)
        readout = self.readout(self.target_readout(states, source), source)
        return Actions((log_probabilities(self.output(readout)),), steps)

    def written(self, actions: Sequence[Tensor], tokens: Tensor, source: Source) -> list[Written]:
        (table,) = actions  # (N, T, S, V)
        index = tokens[:, :, None, None].expand(*table.shape[:-1], 1)
        return [Written(stay) for stay in table.gather(-1, index)[..., 0].unbind(1)]

    def mixture(self, weights: Tensor, actions: Sequence[Tensor], source: Source) -> tuple[Tensor, Tensor]:
        joint = weights[..., None] + actions[0]  # (N, T, S, V)
        return joint.logsumexp(2), joint.logsumexp(3)

    def move(self, after: Tensor, step: Sequence[Tensor], source: Source) -> Tensor:
        """Order 0: from any position to any in reach; order 1: by 0 … jump positions."""
        if self.order == 0:
            leave, arrive = step
            sources, size = source.bias.shape[:2]
            moved = (after + leave).view(sources, -1, size, 1) + source.bias[:, None]  # (B, k, S, S)
            return moved.logsumexp(2).view_as(arrive) + arrive
        size, moves = after.shape[1], self.jump + 1
        moved = after[:, :, None] + step[0]  # (N, S, jump + 1)
        # Entry (i, move) goes to column i + move: rows of S + moves entries, read as rows of one entry less.
        band = F.pad(moved, (0, size), value=PADDING).flatten(1)[:, : size * (size + moves - 1)]
        return band.view(-1, size, size + moves - 1)[..., :size].logsumexp(1)
