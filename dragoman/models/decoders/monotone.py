"""What decoders with a latent source position share: they sum over all alignments, token by token.

Such a decoder writes every target token at some source position. Its recurrent layers read target tokens alone, so all
alignments share one state and the forward algorithm sums over them exactly. The state carries the forward variable:
each call gives log p(y_t | y_<t, x), the sum over all alignments of y_<t and y_t.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from dragoman.config.settings import SizeOrNone, setting
from dragoman.layers.attention import observed, show
from dragoman.layers.dropout import Dropout
from dragoman.layers.embeddings import Embedding
from dragoman.layers.monotone import IMPOSSIBLE, PADDING, forward_weights
from dragoman.models.contracts import Memory, State
from dragoman.models.decoders.recurrent_parts import CellStack, InitialState, RecurrentDecoderBase, build_dropout


@dataclass(frozen=True)
class MonotoneDecoderBase(RecurrentDecoderBase):
    """Settings of every decoder with a latent source position."""

    readout: SizeOrNone = setting(
        0, help="size of tanh(W [state; source position]), the input of the output layer; 0: that of the embeddings"
    )

    @property
    def output_width(self) -> int:
        """Size of the input of the output layer."""
        return self.readout or self.embedding


# Log-probabilities of writing each token at each source position, one step (N, S, V) or several (N, T, S, V): the
# position stays, and, where there is a second tensor, it moves on by one.
Emissions = tuple[Tensor, ...]


class MonotoneDecoder(nn.Module):
    """Recurrent layers over the target, a distribution over tokens at every source position, and the forward algorithm.

    A subclass computes emissions and moves. It gives log-probabilities, not hidden vectors, so the model hands it the
    output layer.
    """

    max_positions = None
    unused_memory: tuple[str, ...] = ()
    is_cross_attention = True  # the weights of the positions align target and source
    gives_log_probabilities = True
    num_emissions: int  # 1: a position stays after it wrote a token; 2: it may also move on by one
    output: nn.Linear  # set by the model

    def __init__(self, config: MonotoneDecoderBase, embedding: Embedding, memory_width: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = CellStack(config, embedding.width, 0)
        self.begin = InitialState(config, memory_width, self.stack.cells[0].num_states)  # type: ignore[arg-type]
        self.width = config.output_width or embedding.width  # of the readouts, until the output layer is set
        self.from_state = nn.Linear(config.width, self.width)
        self.from_source = nn.Linear(memory_width, self.width, bias=False)
        self.dropout = build_dropout(config)
        self.readout_dropout = Dropout(config.dropout)

    def set_output(self, layer: nn.Linear) -> None:
        """Take the output layer of the model; from now on `width` is the number of target tokens."""
        self.output, self.width = layer, layer.out_features

    def read(self, memory: Memory) -> tuple[Tensor, ...]:
        """What a subclass computes from the memory alone, each tensor with one row per source."""
        raise NotImplementedError

    def emissions(self, states: Tensor, readout: Tensor, state: State) -> tuple[Emissions, Tensor]:
        """States (N, T, D) and readouts (N, T, S, R) → emissions (N, T, S, V) and moves (N, T, S, S)."""
        raise NotImplementedError

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (mask, source part of the readout, …); cache = (cells, weights, emissions of the last step).

        Before the first token all weight is on the first position, and <sos> is written with probability one.
        """
        rows, length = memory.mask.shape
        precise = torch.promote_types(memory.keys.dtype, torch.float32)
        weights = torch.full((rows, length), PADDING, dtype=precise, device=memory.keys.device)
        weights[:, 0] = 0.0
        never = weights.new_full((), IMPOSSIBLE).expand(rows, length, self.width)
        emissions = (torch.zeros_like(never), never)[: self.num_emissions]
        static = (memory.mask, self.from_source(memory.values), *self.read(memory))
        return State(static, (self.begin(memory), weights, emissions), length=0)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (N, T) → log-probabilities (N, T, V) of the token after each."""
        cells, weights, last = state.cache
        states, cells = self.stack(self.dropout(self.embedding(tokens)), cells)  # (N, T, D)
        emissions, moves = self.emissions(states, self.readout(states, state.static[1]), state)
        before = [torch.cat([one[:, None], more[:, :-1]], 1) for one, more in zip(last, emissions, strict=True)]
        index = tokens[:, :, None, None].expand(*before[0].shape[:-1], 1)
        read = [table.gather(-1, index)[..., 0] for table in before]  # (N, T, S)
        weights = forward_weights(weights, moves, *read)  # (N, T, S)
        joint = weights[..., None] + reduce(torch.logaddexp, emissions)  # (N, T, S, V)
        if observed():
            show(self, joint.logsumexp(-1).softmax(-1)[:, None])
        cache = (cells, weights[:, -1], tuple(table[:, -1] for table in emissions))
        return joint.logsumexp(2), state._replace(cache=cache, length=state.length + tokens.shape[1])

    def readout(self, states: Tensor, source: Tensor) -> Tensor:
        """tanh(W [state; source position]): states (N, T, D), source (B, S, R) → (N, T, S, R)."""
        rows, length = states.shape[:2]
        target = self.from_state(states).view(source.shape[0], -1, 1, source.shape[-1])  # (B, k·T, 1, R)
        out: Tensor = self.readout_dropout(torch.tanh(target + source[:, None]))
        return out.view(rows, length, *source.shape[1:])
