"""Decoders with a latent source position: they sum over all alignments by the forward algorithm, token by token.

Such a decoder writes every target token at some source position; between two tokens the position moves. Its recurrent
layers read target tokens alone, so all alignments share one state and the forward algorithm sums over them exactly. The
state carries the forward variable: each call gives log p(y_t | y_<t, x), the sum over all alignments of y_<t and y_t.
Everything is a log-probability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import SizeOrNone, setting
from dragoman.data.tokenizers import PAD
from dragoman.models.contracts import Criterion, Memory, State
from dragoman.models.decoders.recurrent import (
    CellDecoder,
    CellStack,
    InitialState,
    RecurrentDecoderBase,
    build_dropout,
)
from dragoman.models.kernels.cpu_dropout import Dropout
from dragoman.models.layers.attention import observed
from dragoman.models.layers.embeddings import Embedding
from dragoman.models.layers.linear import LogProbabilities
from dragoman.models.layers.rnn_attention import GeneralConfig, build_rnn_attention

IMPOSSIBLE = -1e4  # log-probability of what cannot happen; finite, so that no gradient is NaN
PADDING = -1e8  # of a position that does not exist: even an impossible token leaves no weight there


class Written(NamedTuple):
    """Log-probabilities (N, S) of writing a token at each position i, and then to be at i or at i + 1."""

    stay: Tensor
    advance: Tensor | None = None  # None: never; impossible at the last position


class ForwardPass(NamedTuple):
    """What the forward algorithm computes."""

    weights: list[Tensor]  # before each token, (N, S): p(the position is visited | tokens before)
    evidence: list[Tensor]  # of each token that was written, (N,): log p(token | tokens before)


def forward_bias(mask: Tensor, *, monotone: bool) -> Tensor:
    """Added to moves from i to j: 0 if j is real and, if monotone, not left of i; mask (B, S) → (B, S, S)."""
    size = mask.shape[1]
    allowed = torch.ones(size, size, dtype=torch.bool, device=mask.device)
    bias = torch.zeros(size, size, device=mask.device, dtype=torch.float32)
    bias = bias.masked_fill(~(allowed.triu() if monotone else allowed), PADDING)
    return bias.masked_fill(~mask[:, None], PADDING)


def write(weights: Tensor, written: Written) -> tuple[Tensor, Tensor]:
    """Condition weights (N, S) on the token that is written: normalised weights after it, and the evidence (N,)."""
    after = weights + written.stay
    if written.advance is not None:
        after = torch.logaddexp(after, F.pad((weights + written.advance)[:, :-1], (1, 0), value=PADDING))
    evidence = after.logsumexp(-1)
    return after - evidence[:, None], evidence


def forward_algorithm(
    after: Tensor,
    move: Callable[[Tensor, Sequence[Tensor]], Tensor],
    steps: Sequence[Sequence[Tensor]],
    written: Sequence[Written],
) -> ForwardPass:
    """Move, write, move, write, … from the normalised weights `after` (N, S) of the last token that was read.

    `move(after, step)` gives the weights before the next token. There are as many tokens as steps, or one less.
    """
    weights, evidence = [], []
    for t, step in enumerate(steps):
        weights.append(move(after, step))
        if t < len(written):
            after, total = write(weights[-1], written[t])
            evidence.append(total)
    return ForwardPass(weights, evidence)


@dataclass(frozen=True)
class MonotoneDecoderBase(RecurrentDecoderBase):
    """Settings of every decoder with a latent source position."""

    readout: SizeOrNone = setting(
        0, help="size of tanh(W [state; source position]), the input of the output layer; 0: that of the embeddings"
    )
    context: bool = setting(
        False, help="the readout also sees a context of soft attention over the whole source, such as its features"
    )

    @property
    def output_width(self) -> int:
        return self.readout or self.embedding


class Source(NamedTuple):
    """What a decoder reads of the memory, one row per source; `State.static`."""

    readout: Tensor  # (B, S, R) source part of the readouts
    bias: Tensor  # (B, S, S) added to moves from i to j, or (B, S) to moves to j
    keys: Tensor  # what a subclass computed, (B, S, …)
    copied: Tensor  # (B, S) the target token that copies each position, PAD where there is none
    attended: tuple[Tensor, ...]  # mask, and what the soft attention reads; () without it


class Actions(NamedTuple):
    """Log-probabilities at every step and source position."""

    tokens: tuple[Tensor, ...]  # (N, T, …) each, of the actions that write tokens, as the subclass defines them
    steps: tuple[Tensor, ...]  # (N, T, S, …) of the moves between two tokens


class MonotoneDecoder(CellDecoder):
    """Recurrent layers over the target, a distribution over actions at every source position, the forward algorithm.

    A subclass defines the actions: their log-probabilities, which of them write a token, and how positions move. The
    decoder gives log-probabilities, not hidden vectors, so the model hands it the output layer.
    """

    own_likelihood = True
    output: nn.Linear  # set by the model

    def __init__(self, config: MonotoneDecoderBase, embedding: Embedding, memory_width: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = CellStack(config, embedding.width, 0)
        self.begin = InitialState(config, memory_width, self.stack.cells[0].num_states)  # type: ignore[arg-type]
        self.width = config.output_width or embedding.width  # of the readouts, until the output layer is set
        self.attention = build_rnn_attention(GeneralConfig(), config.width, memory_width) if config.context else None
        if self.attention is not None:
            self.attention.is_cross_attention = False  # the positions align, not what it sees
        self.from_state = nn.Linear(config.width + (memory_width if config.context else 0), self.width)
        self.from_source = nn.Linear(memory_width, self.width, bias=False)
        self.dropout = build_dropout(config)
        self.readout_dropout = Dropout(config.dropout)

    def set_output(self, layer: nn.Linear) -> LogProbabilities:
        self.output, self.width = layer, layer.out_features
        return LogProbabilities(self.width)

    # --- What a subclass defines

    def first_actions(self, like: Tensor) -> tuple[Tensor, ...]:
        """Actions (N, …) that write <sos> with certainty and stay; `like` (N, S)."""
        raise NotImplementedError

    def read(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """The bias of moves, and whatever else it needs of the memory (B, S, …)."""
        raise NotImplementedError

    def actions(self, states: Tensor, source: Source) -> Actions:
        """States (N, T, D) → log-probabilities of all actions."""
        raise NotImplementedError

    def written(self, actions: Sequence[Tensor], tokens: Tensor, source: Source) -> list[Written]:
        """Actions (N, T, …) that write given tokens (N, T), step by step."""
        raise NotImplementedError

    def mixture(self, weights: Tensor, actions: Sequence[Tensor], source: Source) -> tuple[Tensor, Tensor]:
        """From the weights (N, T, S) before each token: log p (N, T, V) of every token, (N, T, S) of every position."""
        raise NotImplementedError

    def move(self, after: Tensor, step: Sequence[Tensor], source: Source) -> Tensor:
        """Weights (N, S) after a token → weights before the next; `step` is one step of `Actions.steps`."""
        raise NotImplementedError

    # --- The decoder

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = Source; cache = (cells, weights before the last token, actions that could write it).

        Before the first token all weight is on the first position, and <sos> is certain.
        """
        rows, length = memory.mask.shape
        precise = torch.promote_types(memory.keys.dtype, torch.float32)
        weights = torch.full((rows, length), PADDING, dtype=precise, device=memory.keys.device)
        weights[:, 0] = 0.0
        copied = memory.mask.new_zeros((rows, length), dtype=torch.long) if memory.tokens is None else memory.tokens
        attended: tuple[Tensor, ...] = ()
        if self.attention is not None:
            attended = (memory.mask, *self.attention.read(memory.keys, memory.values))
        source = Source(self.from_source(memory.values), *self.read(memory), copied, attended)
        return State(source, (self.begin(memory), weights, self.first_actions(weights)), length=0)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (N, T) → log-probabilities (N, T, V) of the token after each."""
        cells, after, actions = self._read(tokens, state)
        source = state.static
        written = self.written([table[:, :-1] for table in actions.tokens], tokens[:, 1:], source)
        steps = list(zip(*(table.unbind(1) for table in actions.steps), strict=True))
        weights = torch.stack(forward_algorithm(after, partial(self.move, source=source), steps, written).weights, 1)
        following, positions = self.mixture(weights, actions.tokens, source)
        if observed():
            self.show_attention(positions.softmax(-1)[:, None])
        cache = (cells, weights[:, -1], tuple(table[:, -1] for table in actions.tokens))
        return following, state._replace(cache=cache, length=state.length + tokens.shape[1])

    def loss(self, inputs: Tensor, target: Tensor, state: State, criterion: Criterion) -> Tensor:
        """Σ −log p(y_t | y_<t, x), from the same numbers as `forward`, without the rest of the vocabulary.

        Label smoothing needs all of it, and an observer the weights of the positions.
        """
        if criterion.smoothing or observed():
            return super().loss(inputs, target, state, criterion)
        return self._losses(inputs, target, state)[0].sum()

    def scored_losses(
        self, inputs: Tensor, target: Tensor, state: State, criterion: Criterion
    ) -> tuple[Tensor, Tensor]:
        losses, passed, actions = self._losses(inputs, target, state)
        scores, _ = self.mixture(torch.stack(passed.weights, 1), actions.tokens, state.static)
        return criterion.scored(scores, target) if criterion.smoothing else (losses, scores)

    def _losses(self, inputs: Tensor, target: Tensor, state: State) -> tuple[Tensor, ForwardPass, Actions]:
        """The loss of every token (N, T), and what it was computed from."""
        _, after, actions = self._read(inputs, state)
        written = self.written(actions.tokens, target, state.static)
        steps = list(zip(*(table.unbind(1) for table in actions.steps), strict=True))
        passed = forward_algorithm(after, partial(self.move, source=state.static), steps, written)
        losses = self.combine(-torch.stack(passed.evidence, 1), passed, actions, target, state.static)
        return losses * (target != PAD), passed, actions

    def combine(self, losses: Tensor, passed: ForwardPass, actions: Actions, target: Tensor, source: Source) -> Tensor:
        """The likelihood's losses (N, T) and whatever else a subclass trains with."""
        return losses

    def _read(self, tokens: Tensor, state: State) -> tuple[tuple[tuple[Tensor, ...], ...], Tensor, Actions]:
        """Read tokens (N, T): cells, weights after the first token, and the actions after each."""
        cells, weights, last = state.cache
        states, cells = self.stack(self.dropout(self.embedding(tokens)), cells)  # (N, T, D)
        actions = self.actions(states, state.static)
        first = self.written([table[:, None] for table in last], tokens[:, :1], state.static)
        after, _ = write(weights, first[0])
        return cells, after, actions

    def target_readout(self, states: Tensor, source: Source) -> Tensor:
        """W [state; context]: states (N, T, D) → (N, T, R), the part that all source positions share."""
        if self.attention is not None:
            mask, *memory = source.attended
            states = torch.cat([states, self.attention(states, tuple(memory), mask, 0)], -1)
        return self.from_state(states)

    def readout(self, target: Tensor, source: Source) -> Tensor:
        """tanh(W [state; context; source position]): the target's part (N, T, R) → (N, T, S, R)."""
        by_source = target.view(source.readout.shape[0], -1, 1, target.shape[-1])  # (B, k·T, 1, R)
        out: Tensor = self.readout_dropout(torch.tanh(by_source + source.readout[:, None]))
        return out.view(*target.shape[:2], *source.readout.shape[1:])
