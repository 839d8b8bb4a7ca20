"""Recurrent decoders: with a fixed context (Sutskever et al. 2014, Cho et al. 2014), with attention before the cell
(Bahdanau et al. 2015, GNMT) and after it (Luong et al. 2015).

What does not depend on the output of the previous step runs over the whole sequence at once: all layers of the
fixed-context decoder, the upper layers of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from dragoman.config.settings import Share, Size, SizeOrNone, setting
from dragoman.kernels.deferred_gradients import deferred_gradients, linear
from dragoman.layers.cells import Cell, CellConfig, CellState, LSTMConfig, build_cell
from dragoman.layers.dropout import Dropout
from dragoman.layers.embeddings import Embedding
from dragoman.layers.rnn import VariationalDropout
from dragoman.layers.rnn_attention import AdditiveConfig, GeneralConfig, RNNAttentionConfig, build_rnn_attention
from dragoman.models.contracts import Memory, State

# Readouts: from states, contexts and embedded tokens to the input of the output layer


@dataclass(frozen=True)
class StateReadout:
    """The top layer's state as it is."""

    kind: ClassVar[str] = "state"


@dataclass(frozen=True)
class TanhReadout:
    """tanh(W [state; context; embedded token])."""

    kind: ClassVar[str] = "tanh"
    width: SizeOrNone = setting(0, help="size; 0: that of the embeddings, so that the output table can be tied")


@dataclass(frozen=True)
class MaxoutReadout:
    """The larger of each pair of W [state; context; embedded token] (Cho 2014, Bahdanau 2015 A.2.2)."""

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


# Settings and modules that all recurrent decoders share


@dataclass(frozen=True)
class _RecurrentDecoderConfig:
    cell: CellConfig = setting(LSTMConfig(), help="recurrent cell")
    layers: Size = setting(1, help="layers in the stack")
    embedding: SizeOrNone = setting(256, help="size of the target embeddings; 0: one-hot vectors, nothing to learn")
    width: Size = setting(512, help="size of the recurrent state")
    begin: Literal["project", "copy", "zero"] = setting(
        "project", help="initial states: tanh(W final) of the encoder, its own states layer by layer, or zeros"
    )
    residual_from: SizeOrNone = setting(0, help="first layer whose input is added to its output; 0: none (GNMT: 3)")
    dropout: Share = setting(0.2, help="on embeddings, between layers and before the output")
    variational: bool = setting(False, help="one dropout mask for all steps of a sequence (Gal and Ghahramani 2016)")


class CellStack(nn.Module):
    """Layers of one kind of cell; every layer reads `extra` beside the output of the layer below."""

    def __init__(self, config: _RecurrentDecoderConfig, inputs: int, extra: int, first: int = 1) -> None:
        super().__init__()
        self.residual_from = config.residual_from
        self.first = first  # the number of the lowest layer, counted from 1
        widths = [config.width if layer > 1 else inputs for layer in range(first, config.layers + 1)]
        self.cells = nn.ModuleList(build_cell(config.cell, size + extra, config.width) for size in widths)
        self.dropout = dropout(config)
        self.width = config.width

    def masks(self, like: Tensor) -> list[Tensor] | None:
        """Masks of variational dropout for the inputs of the layers, for a caller that runs step by step."""
        if not (self.training and isinstance(self.dropout, VariationalDropout)):
            return None
        return [self.dropout(like.new_ones(like.shape[0], 1, self.width)) for _ in self.cells]

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
            below = x
            if number > 1:
                below = self.dropout(x) if masks is None else x * masks[number - self.first]
            assert isinstance(cell, Cell)
            out, state = cell.run(below if extra is None else torch.cat([below, extra], -1), state)
            after.append(state)
            x = x + out if 0 < self.residual_from <= number else out
        return x, tuple(after)


def dropout(config: _RecurrentDecoderConfig) -> nn.Module:
    """The dropout of a configuration, on (N, T, D)."""
    return VariationalDropout(config.dropout) if config.variational else Dropout(config.dropout)


class InitialState(nn.Module):
    """Initial states: tanh(W final) of the encoder (Bahdanau 2015 A.2.2), its own states (Sutskever 2014), or zeros."""

    def __init__(self, config: _RecurrentDecoderConfig, memory_width: int, num_states: int) -> None:
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


# Fixed context


@dataclass(frozen=True)
class FixedContextDecoderConfig(_RecurrentDecoderConfig):
    """Recurrent layers that see the source as one vector (Sutskever 2014, Cho 2014)."""

    kind: ClassVar[str] = "fixed-context"
    context: Literal["start", "every-step"] = setting(
        "start", help="the source sets the initial states only, or also enters every step (Cho 2014)"
    )
    readout: ReadoutConfig = setting(TanhReadout(), help="input of the output layer")

    @property
    def output_width(self) -> int:
        """Size of the input of the output layer; 0: that of the one-hot embeddings."""
        return self.width if isinstance(self.readout, StateReadout) else self.readout.width or self.embedding

    def problems(self) -> Iterator[str]:
        """Cross-field validation errors."""
        if self.begin == "zero" and self.context == "start":
            yield "begin: found 'zero' with context = 'start', so that the decoder would not see the source"


class FixedContextDecoder(nn.Module):
    """No attention: the decoder sees the source only as the last state of the encoder."""

    max_positions = None
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
        self.dropout = dropout(config)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (source vector) where every step reads it; cache = the state of every layer."""
        static = (memory.final[-1],) if self.every_step else ()
        return State(static=static, cache=self.begin(memory), length=0)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (N, T) → hidden (N, T, width)."""
        embedded = self.dropout(self.embedding(tokens))  # (N, T, E)
        contexts = [
            vector.repeat_interleave(state.hypotheses, 0)[:, None].expand(-1, tokens.shape[1], -1)
            for vector in state.static
        ]  # (N, T, M)
        states, cache = self.stack(torch.cat([embedded, *contexts], -1), state.cache)
        hidden = self.dropout(self.readout(states, *contexts, embedded))
        return hidden, state._replace(cache=cache, length=state.length + tokens.shape[1])


# Attention before the cell


@dataclass(frozen=True)
class RecurrentDecoderConfig(_RecurrentDecoderConfig):
    """Recurrent layers; the last state of the bottom layer attends, and the context enters the cell (Bahdanau 2015)."""

    kind: ClassVar[str] = "recurrent"
    attention: RNNAttentionConfig = setting(AdditiveConfig(), help="attention over the source")
    context_to: Literal["bottom", "all"] = setting(
        "bottom", help="which layers the context enters: the bottom one, or all (GNMT)"
    )
    readout: ReadoutConfig = setting(TanhReadout(), help="input of the output layer")

    @property
    def output_width(self) -> int:
        """Size of the input of the output layer; 0: that of the one-hot embeddings."""
        return self.width if isinstance(self.readout, StateReadout) else self.readout.width or self.embedding


class RecurrentDecoder(nn.Module):
    """s_i = f(s_{i−1}, y_{i−1}, c_i) with c_i attended by s_{i−1}; readout from s_i, y_{i−1} and c_i."""

    max_positions = None
    unused_memory: tuple[str, ...] = ()

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
        self.dropout = dropout(config)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (mask, what the attention read); cache = the state of every layer. Needs no capacity."""
        static = (memory.mask, self.attention.read(memory.keys, memory.values))
        return State(static=static, cache=self.begin(memory), length=0)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (N, T) → hidden (N, T, width)."""
        mask, memory = state.static
        embedded = self.dropout(self.embedding(tokens))  # (N, T, E)
        bottom, *others = state.cache
        outputs, contexts = [], []
        step = self.bottom.stepper(embedded)
        with deferred_gradients(tokens.shape[1]):
            for t in range(tokens.shape[1]):
                context = self.attention(bottom[0][:, None], memory, mask, state.length + t)[:, 0]  # c_i from s_{i−1}
                bottom = step(t, context, bottom)  # s_i = f(s_{i−1}, y_{i−1}, c_i)
                outputs.append(bottom[0])
                contexts.append(context)
        context = torch.stack(contexts, 1)  # (N, T, C)
        states, upper = self.upper(torch.stack(outputs, 1), tuple(others), context if self.to_all else None)
        hidden = self.dropout(self.readout(states, context, embedded))
        return hidden, state._replace(cache=(bottom, *upper), length=state.length + tokens.shape[1])


# Attention after the cell


@dataclass(frozen=True)
class LuongDecoderConfig(_RecurrentDecoderConfig):
    """Recurrent layers; the new state of the top layer attends; the output is tanh(W [context; state]) (Luong 2015)."""

    kind: ClassVar[str] = "luong"
    attention: RNNAttentionConfig = setting(GeneralConfig(), help="attention over the source")
    input_feeding: bool = setting(True, help="the attentional vector of a step enters the next one")
    attentional: SizeOrNone = setting(0, help="size of the attentional vector; 0: that of the embeddings")

    @property
    def output_width(self) -> int:
        """Size of the attentional vectors."""
        return self.attentional or self.embedding

    def problems(self) -> Iterator[str]:
        """Cross-field validation errors."""
        if self.embedding == 0 and self.attentional == 0:
            yield "attentional: found 0, expected a size, since one-hot embeddings have none to take"


class LuongDecoder(nn.Module):
    """h_t by the cells, c_t attended by h_t, ã_t = tanh(W_c [c_t; h_t]) (Luong 2015 eq. 5)."""

    max_positions = None
    unused_memory: tuple[str, ...] = ()

    def __init__(self, config: LuongDecoderConfig, embedding: Embedding, memory_width: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.width = config.output_width
        self.input_feeding = config.input_feeding
        self.stack = CellStack(config, embedding.width + (self.width if self.input_feeding else 0), 0)
        self.begin = InitialState(config, memory_width, self.stack.cells[0].num_states)  # type: ignore[arg-type]
        self.attention = build_rnn_attention(config.attention, config.width, memory_width)
        self.combine = nn.Linear(self.attention.width + config.width, self.width, bias=False)
        self.dropout = dropout(config)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (mask, what the attention read); cache = (states of the layers, last attentional vector or ())."""
        static = (memory.mask, self.attention.read(memory.keys, memory.values))
        last = (memory.keys.new_zeros(memory.mask.shape[0], self.width),) if self.input_feeding else ()
        return State(static=static, cache=(self.begin(memory), last), length=0)

    def attend(self, states: Tensor, state: State, position: int) -> Tensor:
        """h_t → ã_t: (N, T, D) → (N, T, width)."""
        mask, memory = state.static
        context = self.attention(states, memory, mask, state.length + position)
        return torch.tanh(linear(torch.cat([context, states], -1), self.combine.weight))

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (N, T) → hidden (N, T, width)."""
        embedded = self.dropout(self.embedding(tokens))  # (N, T, E)
        cells, last = state.cache
        if not self.input_feeding:
            states, cells = self.stack(embedded, cells)
            hidden = self.attend(states, state, 0)
        else:
            attentional: list[Tensor] = []
            masks = self.stack.masks(embedded)
            with deferred_gradients(tokens.shape[1]):
                for t, token in enumerate(embedded.split(1, 1)):
                    states, cells = self.stack(torch.cat([token, last[0][:, None]], -1), cells, None, masks)
                    attentional.append(self.attend(states, state, t))
                    last = (attentional[-1][:, 0],)
            hidden = torch.cat(attentional, 1)
        length = state.length + tokens.shape[1]
        return self.dropout(hidden), state._replace(cache=(cells, last), length=length)
