"""Hard attention with exact marginalisation (Wu et al. 2018; hard monotonic attention: Wu and Cotterell 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Size, setting
from dragoman.layers.embeddings import Embedding
from dragoman.layers.monotone import IMPOSSIBLE, PADDING
from dragoman.models.contracts import Memory, State
from dragoman.models.decoders.monotone import Emissions, MonotoneDecoder, MonotoneDecoderBase
from dragoman.models.heads.softmax import full_precision, log_probabilities


@dataclass(frozen=True)
class HardAttentionDecoderConfig(MonotoneDecoderBase):
    """Every token is written at one source position, a latent variable that is summed out exactly."""

    kind: ClassVar[str] = "hard-attention"
    order: Literal[0, 1] = setting(
        1, help="the next position depends on the target so far alone (0), or also on the position before (1)"
    )
    monotonic: bool = setting(True, help="the position never moves left")
    jump: Size = setting(4, help="order 1: how far a position may move in one step")

    def problems(self) -> Iterator[str]:
        """Cross-field validation errors."""
        if self.order == 1 and not self.monotonic:
            yield "monotonic: found false, expected true with order = 1"


class HardAttentionDecoder(MonotoneDecoder):
    """p(y_t | y_<t, x) = Σ_j p(a_t = j | …) p(y_t | h_t, s_j) (Wu and Cotterell 2019, eqs. 2 to 5).

    Order 0 scores positions by h_t · W s_j, renormalised over j ≥ a_{t−1} if monotonic. Order 1 draws the move
    a_t − a_{t−1} from 0 … jump by a softmax over U [h_t; s_{a_{t−1}}].
    """

    num_emissions = 1

    def __init__(self, config: HardAttentionDecoderConfig, embedding: Embedding, memory_width: int) -> None:
        super().__init__(config, embedding, memory_width)
        self.order, self.monotonic, self.jump = config.order, config.monotonic, config.jump
        if config.order == 0:
            self.key = nn.Linear(memory_width, config.width, bias=False)
        else:
            self.key = nn.Linear(memory_width, config.jump + 1)
            self.query = nn.Linear(config.width, config.jump + 1, bias=False)

    def read(self, memory: Memory) -> tuple[Tensor, ...]:
        """The source part of the scores of moves."""
        return (self.key(memory.keys),)

    def emissions(self, states: Tensor, readout: Tensor, state: State) -> tuple[Emissions, Tensor]:
        """A softmax over tokens at every position, and the transition probabilities between positions."""
        mask, _, keys = state.static
        rows, length, width = states.shape
        by_source = states.view(keys.shape[0], -1, width)  # (B, k·T, D)
        if self.order == 0:
            scores = full_precision(by_source @ keys.transpose(1, 2))  # (B, k·T, S)
            moves = scores.masked_fill(~mask[:, None], PADDING)[..., None, :]
            if self.monotonic:
                size = mask.shape[1]
                moves = moves.expand(-1, -1, size, -1)  # from i to j ≥ i
                moves = moves.masked_fill(~torch.ones(size, size, dtype=torch.bool, device=mask.device).triu(), PADDING)
            moves = moves.log_softmax(-1)
        else:
            moves = self.relative_moves(full_precision(self.query(by_source)[:, :, None] + keys[:, None]), mask)
        moves = moves.reshape(rows, length, *moves.shape[2:])
        return (log_probabilities(self.output(readout)),), moves

    def relative_moves(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Scores (B, T, S, jump + 1) of moving from i by 0 … jump → log-probabilities (B, T, S, S) from i to j."""
        size, reach = mask.shape[1], self.jump + 1
        valid = F.pad(mask, (0, reach)).unfold(1, reach, 1)[:, :size]  # (B, S, jump + 1): the position i + move is real
        steps = scores.masked_fill(~valid[:, None], PADDING).log_softmax(-1)
        # Row i of a band matrix: pad each row to S + reach and read the rows with a shift of one.
        band = F.pad(steps, (0, size), value=IMPOSSIBLE).flatten(-2)[..., : size * (size + reach - 1)]
        band = band.view(*steps.shape[:-1], size + reach - 1)[..., :size]
        return band.masked_fill(~mask[:, None, None], PADDING)
