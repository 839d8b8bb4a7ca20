"""Recurrent decoders: a fixed context (FIELD C1, C2), attention before the cell (C3, B8) and after it (C4).

Everything that does not depend on the previous step's output runs over the whole sequence at once: all layers of the
fixed-context decoder, the upper layers of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from dragoman.config.settings import Share, Size, SizeOrNone, setting
from dragoman.kernels.deferred_gradients import DIRECT, Products, products_for
from dragoman.layers.blocks import Embedding
from dragoman.layers.cells import CellConfig, CellState, LSTMConfig, build_cell
from dragoman.layers.dropout import Dropout
from dragoman.layers.memory_attention import AdditiveConfig, GeneralConfig, MemoryAttentionConfig, build_attention
from dragoman.layers.rnn import VariationalDropout
from dragoman.models.contracts import Memory, State

# Readouts: from states, contexts and embedded tokens to what the output layer sees


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
    width: Size = setting(500, help="pairs")


ReadoutConfig = StateReadout | TanhReadout | MaxoutReadout


class Readout(nn.Module):
    """What the output layer sees of a step."""

    def __init__(self, config: ReadoutConfig, inputs: int, width: int) -> None:
        super().__init__()
        self.kind = config.kind
        outputs = 2 * width if isinstance(config, MaxoutReadout) else width
        self.linear = nn.Identity() if isinstance(config, StateReadout) else nn.Linear(inputs, outputs)

    def forward(self, states: Tensor, *others: Tensor) -> Tensor:
        """Each (N, T, …)."""
        if self.kind == "state":
            return states
        seen: Tensor = self.linear(torch.cat([states, *others], -1))
        if self.kind == "tanh":
            return torch.tanh(seen)
        return seen.view(*seen.shape[:-1], -1, 2).amax(-1)


# Settings and parts that all recurrent decoders share


@dataclass(frozen=True)
class _RecurrentDecoderConfig:
    cell: CellConfig = setting(LSTMConfig(), help="recurrent cell")
    layers: Size = setting(1, help="layers in the stack")
    embedding: SizeOrNone = setting(256, help="size of the target embeddings; 0: one-hot vectors, nothing to learn")
    width: Size = setting(512, help="size of the recurrent state")
    begin: Literal["project", "copy", "zero"] = setting(
        "project", help="first states: tanh(W final) of the encoder, its own states layer by layer, or zeros"
    )
    residual_from: SizeOrNone = setting(0, help="first layer whose input is added to its output; 0: none (GNMT: 3)")
    dropout: Share = setting(0.2, help="on embeddings, between layers and before the output")
    variational: bool = setting(False, help="one dropout mask for all steps of a sequence (Gal and Ghahramani 2016)")


class CellStack(nn.Module):
    """Layers of one cell kind; `extra` is given to every layer beside what the layer below wrote."""

    def __init__(self, config: _RecurrentDecoderConfig, inputs: int, extra: int, first: int = 1) -> None:
        super().__init__()
        self.residual_from = config.residual_from
        self.first = first  # the number of the lowest layer, counted from 1
        widths = [config.width if layer > 1 else inputs for layer in range(first, config.layers + 1)]
        self.cells = nn.ModuleList(build_cell(config.cell, size + extra, config.width) for size in widths)
        self.dropout = dropout(config)
        self.width = config.width

    def masks(self, like: Tensor) -> list[Tensor] | None:
        """What to multiply the layers' inputs (N, T, D) with, for who runs step by step with one mask for all."""
        if not (self.training and isinstance(self.dropout, VariationalDropout)):
            return None
        return [self.dropout(like.new_ones(like.shape[0], 1, self.width)) for _ in self.cells]

    def forward(
        self,
        x: Tensor,
        states: tuple[CellState, ...],
        extra: Tensor | None = None,
        masks: list[Tensor] | None = None,
        products: Products = DIRECT,
    ) -> tuple[Tensor, tuple[CellState, ...]]:
        """x (N, T, I) from bottom to top: outputs (N, T, D) and the states after them."""
        after = []
        for number, (cell, state) in enumerate(zip(self.cells, states, strict=True), start=self.first):
            below = x
            if number > 1:
                below = self.dropout(x) if masks is None else x * masks[number - self.first]
            entering = below if extra is None else torch.cat([below, extra], -1)
            out, state = run(cell, entering, state, products)
            after.append(state)
            x = x + out if 0 < self.residual_from <= number else out
        return x, tuple(after)


def run(cell: Any, x: Tensor, state: CellState, products: Products) -> tuple[Tensor, CellState]:
    """A cell over (N, T, I); for a single step without the set-up of a walk."""
    if x.shape[1] > 1:
        out, after = cell.sequence(x, state)
        return out, after
    if products is not DIRECT:  # one step of a loop
        after = cell.step(cell.settle(cell.multiply(x[:, 0], products)), state, products)
        return after[0][:, None], after
    out, after = cell(x[:, 0], state)
    return out[:, None], after


def dropout(config: _RecurrentDecoderConfig) -> nn.Module:
    """The dropout a configuration asks for, on (N, T, D)."""
    return VariationalDropout(config.dropout) if config.variational else Dropout(config.dropout)


class Begin(nn.Module):
    """First states: tanh(W final) of the encoder (Bahdanau 2015 A.2.2), its own states (Sutskever 2014), or zeros."""

    def __init__(self, config: _RecurrentDecoderConfig, memory_width: int, parts: int) -> None:
        super().__init__()
        self.kind, self.parts, self.layers, self.width = config.begin, parts, config.layers, config.width
        size = config.width * parts
        count = config.layers if config.begin == "project" else 0
        self.project = nn.ModuleList(nn.Linear(memory_width, size) for _ in range(count))

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        """Per layer the cell's state (B, D) each; top layers meet, and a shorter encoder's top one serves the rest."""
        if self.kind == "copy":
            assert len(memory.states) == self.layers, "the encoder has no such states"
            return memory.states
        if self.kind == "zero":
            zeros = memory.keys.new_zeros(memory.keys.shape[0], self.width)
            return tuple((zeros,) * self.parts for _ in range(self.layers))
        states = []
        above = max(0, len(memory.final) - self.layers)  # encoder layers that no decoder layer starts from
        for layer, linear in enumerate(self.project, start=above):
            final = memory.final[min(layer, len(memory.final) - 1)]
            states.append(tuple(torch.tanh(linear(final)).chunk(self.parts, -1)))
        return tuple(states)


# C1 and C2


@dataclass(frozen=True)
class FixedContextDecoderConfig(_RecurrentDecoderConfig):
    """Recurrent layers that see the source as one vector (Sutskever 2014, Cho 2014)."""

    kind: ClassVar[str] = "fixed-context"
    context: Literal["start", "every-step"] = setting(
        "start", help="the source sets the first states only, or enters every step as well (Cho 2014)"
    )
    readout: ReadoutConfig = setting(TanhReadout(), help="what the output layer sees")

    @property
    def output_width(self) -> int:
        """Size of the vectors the output layer sees; 0: that of the one-hot embeddings."""
        return self.width if isinstance(self.readout, StateReadout) else self.readout.width or self.embedding

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if self.begin == "zero" and self.context == "start":
            yield "begin: found 'zero' with context = 'start', which shows the decoder nothing of the source"


class FixedContextDecoder(nn.Module):
    """No attention: what the encoder's last state does not hold is lost."""

    max_positions = None
    unused_memory = ("keys", "values", "mask")

    def __init__(self, config: FixedContextDecoderConfig, embedding: Embedding, memory_width: int) -> None:
        super().__init__()
        self.every_step = config.context == "every-step"
        context = memory_width if self.every_step else 0
        self.embedding = embedding
        self.width = config.output_width or embedding.width
        self.stack = CellStack(config, embedding.width + context, 0)
        self.begin = Begin(config, memory_width, self.stack.cells[0].parts)  # type: ignore[arg-type]
        self.readout = Readout(config.readout, config.width + context + embedding.width, self.width)
        self.dropout = dropout(config)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (source vector) where every step sees it; cache = per layer the cell's state."""
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


# C3 and B8


@dataclass(frozen=True)
class RecurrentDecoderConfig(_RecurrentDecoderConfig):
    """Recurrent layers; the bottom one's last state attends, and what it reads enters the cell (Bahdanau 2015)."""

    kind: ClassVar[str] = "recurrent"
    attention: MemoryAttentionConfig = setting(AdditiveConfig(), help="how the source is looked at")
    context_to: Literal["bottom", "all"] = setting(
        "bottom", help="which layers the context enters: the bottom one, or all (GNMT)"
    )
    readout: ReadoutConfig = setting(TanhReadout(), help="what the output layer sees")

    @property
    def output_width(self) -> int:
        """Size of the vectors the output layer sees; 0: that of the one-hot embeddings."""
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
        self.attention = build_attention(config.attention, config.width, memory_width)
        context = self.attention.width
        self.bottom = build_cell(config.cell, embedding.width + context, config.width)
        self.upper = CellStack(config, config.width, context if self.to_all else 0, first=2)
        self.begin = Begin(config, memory_width, self.bottom.parts)
        self.readout = Readout(config.readout, config.width + context + embedding.width, self.width)
        self.dropout = dropout(config)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (mask, what the attention read); cache = per layer the cell's state. It needs no capacity."""
        static = (memory.mask, self.attention.read(memory.keys, memory.values))
        return State(static=static, cache=self.begin(memory), length=0)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (N, T) → hidden (N, T, width)."""
        mask, memory = state.static
        embedded = self.dropout(self.embedding(tokens))  # (N, T, E)
        bottom, *others = state.cache
        outputs, contexts = [], []
        steps, width = tokens.shape[1], embedded.shape[-1]
        products, weight = products_for(steps), self.bottom.input_weight[:, width:]
        # What the tokens add to the cell's sums is one product for all steps; what the contexts add is not.
        projected = self.bottom.multiply(embedded.transpose(0, 1)).unbind(0) if steps > 1 else ()
        for place in range(steps):
            context = self.attention(bottom[0][:, None], memory, mask, state.length + place, products)[:, 0]
            if steps > 1:
                entering = self.bottom.settle(projected[place] + products.linear(context, weight))
                bottom = self.bottom.step(entering, bottom, products)
            else:
                _, bottom = self.bottom(torch.cat([embedded[:, 0], context], -1), bottom)
            outputs.append(bottom[0])
            contexts.append(context)
        seen = torch.stack(contexts, 1)  # (N, T, C)
        states, upper = self.upper(torch.stack(outputs, 1), tuple(others), seen if self.to_all else None)
        hidden = self.dropout(self.readout(states, seen, embedded))
        return hidden, state._replace(cache=(bottom, *upper), length=state.length + tokens.shape[1])


# C4


@dataclass(frozen=True)
class LuongDecoderConfig(_RecurrentDecoderConfig):
    """Recurrent layers; the top one's new state attends, and tanh(W [context; state]) is what goes on (Luong 2015)."""

    kind: ClassVar[str] = "luong"
    attention: MemoryAttentionConfig = setting(GeneralConfig(), help="how the source is looked at")
    input_feeding: bool = setting(True, help="the attentional vector of a step enters the next one")
    attentional: SizeOrNone = setting(0, help="size of the attentional vector; 0: that of the embeddings")

    @property
    def output_width(self) -> int:
        """Size of the attentional vectors."""
        return self.attentional or self.embedding

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
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
        self.feeding = config.input_feeding
        self.stack = CellStack(config, embedding.width + (self.width if self.feeding else 0), 0)
        self.begin = Begin(config, memory_width, self.stack.cells[0].parts)  # type: ignore[arg-type]
        self.attention = build_attention(config.attention, config.width, memory_width)
        self.combine = nn.Linear(self.attention.width + config.width, self.width, bias=False)
        self.dropout = dropout(config)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """static = (mask, what the attention read); cache = (cells' states, last attentional vector or nothing)."""
        static = (memory.mask, self.attention.read(memory.keys, memory.values))
        last = (memory.keys.new_zeros(memory.mask.shape[0], self.width),) if self.feeding else ()
        return State(static=static, cache=(self.begin(memory), last), length=0)

    def _attend(self, states: Tensor, state: State, place: int, products: Products = DIRECT) -> Tensor:
        mask, memory = state.static
        context = self.attention(states, memory, mask, state.length + place, products)
        return torch.tanh(products.map(self.combine, torch.cat([context, states], -1)))  # (N, T, width)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (N, T) → hidden (N, T, width)."""
        embedded = self.dropout(self.embedding(tokens))  # (N, T, E)
        cells, last = state.cache
        if not self.feeding:
            states, cells = self.stack(embedded, cells)
            hidden = self._attend(states, state, 0)
        else:
            steps: list[Tensor] = []
            masks = self.stack.masks(embedded)
            products = products_for(tokens.shape[1])
            for place, token in enumerate(embedded.split(1, 1)):
                states, cells = self.stack(torch.cat([token, last[0][:, None]], -1), cells, None, masks, products)
                steps.append(self._attend(states, state, place, products))
                last = (steps[-1][:, 0],)
            hidden = torch.cat(steps, 1)
        length = state.length + tokens.shape[1]
        return self.dropout(hidden), state._replace(cache=(cells, last), length=length)
