"""Recurrent decoders: without attention, with attention before the cell (Bahdanau 2015) or after it (Luong 2015)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from dragoman.base.config import Depth, Share, Size, SizeOrNone, setting
from dragoman.models.contracts import Decoder, Encoder, Memory, State
from dragoman.models.kernels.cpu_dropout import Dropout
from dragoman.models.layers import recurrence
from dragoman.models.layers.cells import CellConfig, LSTMConfig, build_cell
from dragoman.models.layers.embeddings import Embedding
from dragoman.models.layers.linear import StepLinear
from dragoman.models.layers.recurrence import Cell, CellState, unrolled
from dragoman.models.layers.rnn import VariationalDropout
from dragoman.models.layers.rnn_attention import AdditiveConfig, GeneralConfig, RNNAttentionConfig, build_rnn_attention
from dragoman.models.traits import ModelContext


@dataclass(frozen=True)
class StateReadout:
    """The state of the top layer."""

    kind: ClassVar[str] = "state"


@dataclass(frozen=True)
class TanhReadout:
    """tanh(W [state; context; embedded token])."""

    kind: ClassVar[str] = "tanh"
    width: SizeOrNone = setting(0, help="size; 0: that of the embeddings, so that the output table can be tied")


@dataclass(frozen=True)
class MaxoutReadout:
    """The larger of each pair of W [state; context; embedded token] (Cho et al. 2014; Bahdanau et al. 2015, A.2.2)."""

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


@dataclass(frozen=True)
class RecurrentDecoderBase:
    """Settings of every recurrent decoder."""

    cell: CellConfig = setting(LSTMConfig(), help="recurrent cell")
    layers: Depth = setting(1, help="number of layers")
    embedding: SizeOrNone = setting(256, help="size of the target embeddings; 0: one-hot vectors without weights")
    width: Size = setting(512, help="size of the recurrent state")
    widths: tuple[Size, ...] = setting((), help="size of each layer; the last must be width; empty: width for all")
    begin: Literal["project", "copy", "zero"] = setting(
        "project", help="initial states: tanh(W final) of the encoder, its own states layer by layer, or zeros"
    )
    residual_from: SizeOrNone = setting(
        0, help="first layer with a residual connection, counted from 1; 0: none (GNMT: 3)"
    )
    dropout: Share = setting(0.2, help="dropout on embeddings, between layers and before the output layer")
    variational: bool = setting(False, help="one dropout mask for all steps of a sequence (Gal and Ghahramani 2016)")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of every layer."""
        return self.widths or (self.width,) * self.layers


@dataclass(frozen=True)
class ReadoutDecoderBase(RecurrentDecoderBase):
    """Settings of recurrent decoders with a readout."""

    readout: ReadoutConfig = setting(TanhReadout(), help="input of the output layer")

    @property
    def output_width(self) -> int:
        """Size of the input of the output layer; 0: that of the one-hot embeddings."""
        return self.width if isinstance(self.readout, StateReadout) else self.readout.width or self.embedding


class CellStack(nn.Module):
    """Layers of one kind of cell; every layer reads `extra` beside the output of the layer below."""

    def __init__(self, config: RecurrentDecoderBase, inputs: int, extra: int, first: int = 1) -> None:
        super().__init__()
        self.residual_from = config.residual_from
        self.first = first  # the number of the lowest layer, counted from 1
        sizes = config.sizes[first - 1 :]
        self.cells = nn.ModuleList(
            build_cell(config.cell, below + extra, size) for below, size in zip((inputs, *sizes), sizes, strict=False)
        )
        self.dropout = build_dropout(config)
        self.inputs = (inputs, *sizes[:-1])  # of every layer, without what each reads beside

    def masks(self, like: Tensor) -> list[Tensor] | None:
        """One mask per layer of variational dropout, for a caller that runs step by step; None: no such dropout."""
        if not (self.training and isinstance(self.dropout, VariationalDropout)):
            return None
        return [self.dropout(like.new_ones(like.shape[0], 1, size)) for size in self.inputs]

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
            inputs = x
            if number > 1:
                inputs = self.dropout(x) if masks is None else x * masks[number - self.first]
            out, state = cell(inputs if extra is None else torch.cat([inputs, extra], -1), state)
            after.append(state)
            x = x + out if 0 < self.residual_from <= number else out
        return x, tuple(after)


def build_dropout(config: RecurrentDecoderBase) -> nn.Module:
    """Ordinary or variational dropout on (N, T, D)."""
    return VariationalDropout(config.dropout) if config.variational else Dropout(config.dropout)


class InitialState(nn.Module):
    """Initial states from the encoder: tanh(W final) (Bahdanau et al. 2015, A.2.2), a copy of its states, or zeros."""

    def __init__(self, config: RecurrentDecoderBase, memory_width: int, num_states: int) -> None:
        super().__init__()
        self.kind, self.num_states, self.layers, self.sizes = config.begin, num_states, config.layers, config.sizes
        sizes = config.sizes if config.begin == "project" else ()
        self.project = nn.ModuleList(nn.Linear(memory_width, size * num_states) for size in sizes)

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        """The state of every layer, each tensor (B, D).

        Top layers are paired; where the encoder has fewer layers, its top layer serves the rest.
        """
        if self.kind == "copy":
            assert len(memory.states) == self.layers, "the encoder has no such states"
            return memory.states
        if self.kind == "zero":
            rows = memory.keys.shape[0]
            return tuple((memory.keys.new_zeros(rows, size),) * self.num_states for size in self.sizes)
        states = []
        unused = max(0, len(memory.final) - self.layers)  # the lowest encoder layers, where there are more
        for layer, project in enumerate(self.project, start=unused):
            final = memory.final[min(layer, len(memory.final) - 1)]
            states.append(tuple(torch.tanh(project(final)).chunk(self.num_states, -1)))
        return tuple(states)


class CellDecoder(Decoder):
    """A decoder of recurrent cells, which may start from the states of the encoder's cells."""

    begin: InitialState

    @classmethod
    def problems(cls, config: Any, around: ModelContext) -> Iterator[str]:
        cells = around.cells
        if cells is not None and (config.widths or cells[:3] != (config.cell, config.layers, config.width)):
            cells = None  # its cells are not those of the decoder
        if config.begin == "copy" and cells is None:
            yield (
                "decoder.begin: 'copy' needs a recurrent encoder of one direction with the decoder's cell, layers "
                "and width"
            )
        if config.widths and len(config.widths) != config.layers:
            yield f"decoder.widths: found {len(config.widths)}, expected one for each of {config.layers} layers"
        elif config.widths and config.widths[-1] != config.width:
            yield f"decoder.width: found {config.width}, expected {config.widths[-1]}, the last of the widths"
        elif config.residual_from > 1 and len({*config.sizes[config.residual_from - 2 :]}) > 1:
            yield "decoder.residual_from: found widths that differ from there on, expected one width"
        if around.share_cells:
            yield from cls.sharing_problems(config, around._replace(cells=cells))
        if config.variational and config.dropout and around.in_chunks:
            yield (
                "decoder.variational: found true, but truncate and word-by-word forcing run a sequence in chunks, each "
                "with a mask of its own; expected false, or forcing.passes above 0"
            )
        if config.residual_from == 1 or config.residual_from > config.layers:
            yield (
                f"decoder.residual_from: found {config.residual_from}, expected 0 or from 2 to the number of layers "
                f"({config.layers})"
            )

    @classmethod
    def sharing_problems(cls, config: Any, around: ModelContext) -> Iterator[str]:
        """Why the decoder cannot use the cells of the encoder."""
        yield (
            "share_cells: found true, expected a recurrent encoder of one direction and a fixed-context "
            "decoder with the same cell, layers and width"
        )

    def connect(self, encoder: Encoder, *, share_cells: bool = False) -> None:
        if self.begin.kind == "copy":
            encoder.keep_states()


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


@dataclass(frozen=True)
class RecurrentDecoderConfig(ReadoutDecoderBase):
    """Recurrent layers; the previous state of the bottom layer attends, and the context enters the cell."""

    kind: ClassVar[str] = "recurrent"
    attention: RNNAttentionConfig = setting(AdditiveConfig(), help="attention over the source")
    context_to: Literal["bottom", "all"] = setting(
        "bottom", help="which layers the context enters: the bottom one, or all (GNMT)"
    )


class RecurrentDecoder(CellDecoder):
    """s_i = f(s_{i−1}, y_{i−1}, c_i) with c_i attended by s_{i−1}; readout from s_i, y_{i−1} and c_i.

    With more layers GNMT (Wu et al. 2016). The bottom layer runs step by step, the upper ones over the whole sequence.
    """

    def __init__(self, config: RecurrentDecoderConfig, embedding: Embedding, memory_width: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.width = config.output_width or embedding.width
        self.to_all = config.context_to == "all"
        bottom = config.sizes[0]
        self.attention = build_rnn_attention(config.attention, bottom, memory_width)
        context = self.attention.width
        self.bottom = build_cell(config.cell, embedding.width + context, bottom)
        self.upper = CellStack(config, bottom, context if self.to_all else 0, first=2)
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
        cell = self.stack.cells[0] if len(self.stack.cells) == 1 else None
        if isinstance(cell, Cell) and (fed := recurrence.feed(cell, embedded, cells[0], last, memory, self.combine)):
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
