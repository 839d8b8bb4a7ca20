"""Recurrent cells: `cell(x, state) -> (output, state)`.

A state is a tuple of tensors (N, D); the first is the output. A step is `step(project(x), state)`. The projection of
the input does not depend on the state, so `sequence` projects all steps in one product and then runs the recurrence: by
torch's kernel where that is fastest (`kernels.torch_rnn`), by our own (`kernels.fused_rnn`) otherwise. `plain_loop`
computes the same step by step, and tests compare all of them. A cell has one bias per gate; torch's layers have two
that are always added. Inside `observe_cells` every cell runs step by step and shows each step to an observer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Range, SizeOrNone, setting
from dragoman.kernels.deferred_gradients import deferring, linear
from dragoman.kernels.fused_gru import FusedGRU, FusedGRUResetBefore
from dragoman.kernels.fused_lstm import FusedCoupledLSTM, FusedLayerNormLSTM, FusedLSTM, FusedPeepholeLSTM
from dragoman.kernels.fused_rnn import FusedRNN, fused_rnn, fused_rnn_step
from dragoman.kernels.input_feeding import FeedingCell
from dragoman.kernels.support import is_exporting
from dragoman.kernels.torch_rnn import torch_is_faster, torch_rnn

CellState = tuple[Tensor, ...]  # each (N, D); the first is the output
# cell, projected input (N, blocks·D), state before, state after
CellObserver = Callable[["Cell", Tensor, CellState, CellState], None]
_observer: ContextVar[CellObserver | None] = ContextVar("cell_observer", default=None)

RecurrentInit = Literal["orthogonal", "identity", "uniform"]
RECURRENT_INIT = "initial W_hh of every gate: orthogonal, identity, or uniform within 1/√width"
Activation = Literal["tanh", "relu", "sigmoid"]
FORGET_BIAS = "initial bias of the forget gate; above 0 the gate is open, so that gradients flow far back"


@dataclass(frozen=True)
class RNNConfig:
    """The cell of Elman 1990; with relu and an identity matrix, that of Le et al. 2015."""

    kind: ClassVar[str] = "rnn"
    activation: Literal["tanh", "relu"] = setting("tanh", help="activation of the new state")
    recurrent_init: RecurrentInit = setting("orthogonal", help=RECURRENT_INIT)


@dataclass(frozen=True)
class LSTMConfig:
    """Long short-term memory, Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000."""

    kind: ClassVar[str] = "lstm"
    activation: Activation = setting("tanh", help="activation of the candidate; only tanh has fused kernels")
    output_activation: Activation = setting(
        "tanh", help="activation of the memory cell before the output gate; only tanh has fused kernels"
    )
    forget_bias: float = setting(1.0, help=FORGET_BIAS)
    recurrent_init: RecurrentInit = setting("orthogonal", help=RECURRENT_INIT)


@dataclass(frozen=True)
class PeepholeLSTMConfig:
    """An LSTM whose gates also read the memory cell, Gers and Schmidhuber 2000."""

    kind: ClassVar[str] = "peephole-lstm"
    peepholes: Literal["diagonal", "full"] = setting(
        "diagonal",
        help="weights of the memory cell: diagonal, one per unit; full, a matrix per gate (without fused kernels)",
    )
    forget_bias: float = setting(1.0, help=FORGET_BIAS)
    recurrent_init: RecurrentInit = setting("orthogonal", help=RECURRENT_INIT)


@dataclass(frozen=True)
class CoupledLSTMConfig:
    """An LSTM with coupled input and forget gates, i = 1 − f, Greff et al. 2017: a quarter fewer parameters."""

    kind: ClassVar[str] = "coupled-lstm"
    forget_bias: float = setting(1.0, help=FORGET_BIAS)
    recurrent_init: RecurrentInit = setting("orthogonal", help=RECURRENT_INIT)


@dataclass(frozen=True)
class LayerNormLSTMConfig:
    """An LSTM with layer norm inside, Ba et al. 2016."""

    kind: ClassVar[str] = "layer-norm-lstm"
    forget_bias: float = setting(1.0, help=FORGET_BIAS)
    recurrent_init: RecurrentInit = setting("orthogonal", help=RECURRENT_INIT)


@dataclass(frozen=True)
class MogrifierLSTMConfig:
    """An LSTM whose input and state gate each other before every step, Melis et al. 2020. Runs step by step."""

    kind: ClassVar[str] = "mogrifier-lstm"
    rounds: Annotated[int, Range(1, 20)] = setting(5, help="how often input and state gate each other, in turn")
    rank: SizeOrNone = setting(0, help="rank of the matrices of these gates; 0: full matrices")
    forget_bias: float = setting(1.0, help=FORGET_BIAS)
    recurrent_init: RecurrentInit = setting("orthogonal", help=RECURRENT_INIT)


@dataclass(frozen=True)
class GRUConfig:
    """Gated recurrent unit, Cho et al. 2014."""

    kind: ClassVar[str] = "gru"
    reset: Literal["after", "before"] = setting(
        "after", help="reset gate after the product with W_hh (torch, cuDNN) or before it (the paper)"
    )
    activation: Literal["tanh", "relu", "sigmoid", "gelu", "silu"] = setting(
        "tanh", help="activation of the candidate; sigmoid has no fused kernel"
    )
    recurrent_init: RecurrentInit = setting("orthogonal", help=RECURRENT_INIT)


CellConfig = (
    RNNConfig | LSTMConfig | PeepholeLSTMConfig | CoupledLSTMConfig | LayerNormLSTMConfig | MogrifierLSTMConfig
    | GRUConfig
)  # fmt: skip

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "silu": F.silu,
}
INITIALISERS: dict[str, Callable[[Tensor], Tensor]] = {
    "orthogonal": nn.init.orthogonal_,
    "identity": nn.init.eye_,
    "uniform": lambda block: nn.init.uniform_(block, -(block.shape[1] ** -0.5), block.shape[1] ** -0.5),
}


@contextmanager
def observe_cells(observer: CellObserver) -> Iterator[None]:
    """Call `observer` with every step of every cell inside the block, in the order that each cell reads its input."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def observed() -> bool:
    """Whether there is an observer: then no fused kernel may hide a step."""
    return not torch.compiler.is_compiling() and _observer.get() is not None


class Cell(nn.Module):
    """What all cells share: one block of weight rows per gate or candidate, and how sequences are computed."""

    blocks: int
    block_names: ClassVar[tuple[str, ...]]  # what each block of weight rows computes
    num_states: int  # tensors in the state
    fused: type[FusedRNN]
    activation_name = "tanh"  # of the candidate
    torch_kernel = ""  # the name of torch's function for whole sequences, if there is one
    has_fused = True  # whether the fused kernels compute this cell; else it runs step by step

    def __init__(self, inputs: int, width: int, recurrent_init: RecurrentInit) -> None:
        super().__init__()
        self.inputs, self.width = inputs, width
        self.input_weight = nn.Parameter(torch.empty(self.blocks * width, inputs))
        self.hidden_weight = nn.Parameter(torch.empty(self.blocks * width, width))
        self.bias = nn.Parameter(torch.zeros(self.blocks * width))
        for block in self.input_weight.chunk(self.blocks):
            nn.init.xavier_uniform_(block)
        for block in self.hidden_weight.chunk(self.blocks):
            INITIALISERS[recurrent_init](block)

    def start(self, rows: int) -> CellState:
        """The state before the first step: zeros."""
        return tuple(self.bias.new_zeros(rows, self.width) for _ in range(self.num_states))

    def project(self, x: Tensor) -> Tensor:
        """W_ih x + b: (…, I) → (…, blocks·D)."""
        return F.linear(x, self.input_weight, self.bias)

    def input_product(self, x: Tensor) -> Tensor:
        """`project` before `finish_projection`; where x is narrower than the input, of its first entries only."""
        return linear(x, self.input_weight[:, : x.shape[-1]], self.bias)

    def finish_projection(self, product: Tensor) -> Tensor:
        """What follows after the product of the whole input: nothing, but for a norm in some cells."""
        return product

    def gates(self, projected: Tensor, state: CellState) -> dict[str, Tensor]:
        """The gates and the candidate of one step by name, each (N, D); projected (N, blocks·D), the state before."""
        raise NotImplementedError

    def step(self, projected: Tensor, state: CellState) -> CellState:
        """The state after one step, by the equations of the cell; projected (N, blocks·D)."""
        raise NotImplementedError

    def shown_step(self, projected: Tensor, state: CellState) -> CellState:
        """`step`, shown to the observer if there is one."""
        after = self.step(projected, state)
        if observed() and (observer := _observer.get()) is not None:
            observer(self, projected, state, after)
        return after

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """One step: x (N, I) → output (N, D) and the state after it."""
        state = self.shown_step(self.project(x), state)
        return state[0], state

    def run(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """x (N, T, I), T ≥ 1 → outputs (N, T, D) and the state after them; one step needs no set-up of a sequence."""
        if x.shape[1] > 1:
            return self.sequence(x, state)
        if deferring() and self.has_fused:
            after = self.fused_step(self.finish_projection(self.input_product(x[:, 0])), state)
            return after[0][:, None], after
        out, after = self(x[:, 0], state)
        return out[:, None], after

    def stepper(self, x: Tensor) -> Callable[[int, Tensor, CellState], CellState]:
        """A function (t, context, state) → state of a step with the input [x_t; context], for a loop over time.

        x (N, T, X) is known before the loop. W [x; c] = W_x x + W_c c, so one product computes W_x x of all steps.
        """
        if x.shape[1] == 1:
            return lambda t, context, state: self(torch.cat([x[:, t], context], -1), state)[1]
        projected = self.input_product(x.transpose(0, 1)).unbind(0)  # T times (N, blocks·D)
        weight = self.input_weight[:, x.shape[-1] :]

        def step(t: int, context: Tensor, state: CellState) -> CellState:
            return self.fused_step(self.finish_projection(projected[t] + linear(context, weight)), state)

        return step

    def for_feeding(self) -> FeedingCell | None:
        """The cell as `kernels.input_feeding` reads it; None: its steps must run one by one."""
        if observed() or not self.has_fused:
            return None
        return FeedingCell(self.fused, self.input_weight, self.hidden_weight, self.bias, self.extras())

    def fused_step(self, projected: Tensor, state: CellState) -> CellState:
        """`step` as one autograd function, inside a loop that defers gradients."""
        multiplies_twice = self.fused is FusedGRUResetBefore
        if not deferring() or observed() or multiplies_twice or not self.has_fused:
            return self.shown_step(projected, state)
        product = linear(state[0], self.hidden_weight)
        return fused_rnn_step(self.fused, projected, product, state, self.extras(), self.activation_name)

    def sequence(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """All steps of x (N, T, I) → outputs (N, T, D) and the state after the last."""
        if torch_is_faster(self.torch_kernel, x) and not observed() and not is_exporting():
            return torch_rnn(self.torch_kernel, x, state, self.torch_weights())
        states = self.all_states(x, state)
        return states[0], tuple(part[:, -1] for part in states)

    def all_states(self, x: Tensor, state: CellState) -> CellState:
        """The whole state after every step of x (N, T, I), each tensor (N, T, D)."""
        if is_exporting():
            return self.scan_loop(x, state)
        if torch.compiler.is_compiling() or observed() or not self.has_fused:  # a compiler fuses plain steps itself
            return self.plain_loop(x, state)
        projected = self.project(x.transpose(0, 1))
        states = fused_rnn(self.fused, projected, self.hidden_weight, state, self.extras(), self.activation_name)
        # The fused recurrence keeps states in at least float32, also of a model in half precision.
        return tuple(part.transpose(0, 1).to(self.bias.dtype) for part in states)

    def plain_loop(self, x: Tensor, state: CellState) -> CellState:
        """`all_states` step by step; time first in the product, so that every step is contiguous."""
        steps = []
        for projected in self.project(x.transpose(0, 1)).unbind(0):  # (N, blocks·D)
            state = self.shown_step(projected, state)
            steps.append(state)
        return tuple(torch.stack(part, 1) for part in zip(*steps, strict=True))

    def scan_loop(self, x: Tensor, state: CellState) -> CellState:
        """`all_states` as one operation for exported graphs, in which the number of steps may change."""
        from torch._higher_order_ops.scan import scan

        def step(before: CellState, projected: Tensor) -> tuple[CellState, CellState]:
            after = self.step(projected, before)
            return after, tuple(part.clone() for part in after)

        _, states = scan(step, tuple(state), self.project(x.transpose(0, 1)))
        return tuple(part.transpose(0, 1) for part in states)

    def extras(self) -> tuple[Tensor, ...]:
        """Parameters of the recurrence beside W_hh."""
        return ()

    def torch_weights(self) -> list[Tensor]:
        """Weights as torch's kernels expect them, with zeros for the second bias."""
        return [self.input_weight, self.hidden_weight, self.bias, torch.zeros_like(self.bias)]

    def _add_hidden(self, projected: Tensor, hidden: Tensor) -> Tensor:
        if deferring():
            return projected + linear(hidden, self.hidden_weight)
        return torch.addmm(projected, hidden, self.hidden_weight.t())


class RNNCell(Cell):
    """h = tanh(W_hh h' + W_ih x + b)."""

    blocks, num_states, block_names = 1, 1, ("candidate",)
    fused = FusedRNN

    def __init__(self, config: RNNConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.recurrent_init)
        self.activation, self.activation_name = ACTIVATIONS[config.activation], config.activation
        self.torch_kernel = f"rnn_{config.activation}"

    def gates(self, projected: Tensor, state: CellState) -> dict[str, Tensor]:
        return {"candidate": self.activation(self._add_hidden(projected, state[0]))}

    def step(self, projected: Tensor, state: CellState) -> CellState:
        return (self.gates(projected, state)["candidate"],)


LSTM_BLOCKS = ("input gate", "forget gate", "candidate", "output gate")


def lstm_gates(blocks: Tensor, activation: Callable[[Tensor], Tensor] = torch.tanh) -> dict[str, Tensor]:
    """σ of the gates and the activated candidate, from the four blocks (N, 4D) before their activations."""
    ingate, forget, candidate, output = blocks.chunk(4, -1)
    values = (torch.sigmoid(ingate), torch.sigmoid(forget), activation(candidate), torch.sigmoid(output))
    return dict(zip(LSTM_BLOCKS, values, strict=True))


class LSTMCell(Cell):
    """c = f⊙c' + i⊙ĉ, h = o⊙tanh(c); state (h, c), blocks i, f, ĉ, o. Other activations may replace both tanh."""

    blocks, num_states, block_names = 4, 2, LSTM_BLOCKS
    fused = FusedLSTM

    def __init__(self, config: LSTMConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.recurrent_init)
        nn.init.constant_(self.bias.data[width : 2 * width], config.forget_bias)  # Jozefowicz et al. 2015
        self.activation, self.output_activation = (
            ACTIVATIONS[name] for name in (config.activation, config.output_activation)
        )
        self.has_fused = config.activation == config.output_activation == "tanh"
        self.torch_kernel = "lstm" if self.has_fused else ""

    def gates(self, projected: Tensor, state: CellState) -> dict[str, Tensor]:
        return lstm_gates(self._add_hidden(projected, state[0]), self.activation)

    def step(self, projected: Tensor, state: CellState) -> CellState:
        ingate, forget, candidate, output = self.gates(projected, state).values()
        memory = forget * state[1] + ingate * candidate
        return output * self.output_activation(memory), memory

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """One step, x (N, I), with torch's fused cell where there is one."""
        if not self.has_fused or observed() or is_exporting():
            return super().forward(x, state)
        hidden, memory = torch.lstm_cell(x, list(state), *self.torch_weights())
        return hidden, (hidden, memory)


class PeepholeLSTMCell(Cell):
    """f and i also read p⊙c', o reads p⊙c; with full peepholes P c' and P c, P (D, D) for each gate.

    State (h, c), blocks i, f, ĉ, o, peepholes i, f, o.
    """

    blocks, num_states, block_names = 4, 2, LSTM_BLOCKS
    fused = FusedPeepholeLSTM

    def __init__(self, config: PeepholeLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.recurrent_init)
        nn.init.constant_(self.bias.data[width : 2 * width], config.forget_bias)
        self.has_fused = config.peepholes == "diagonal"
        shape = (3, width) if self.has_fused else (3, width, width)
        self.peepholes = nn.Parameter(torch.zeros(shape))  # zeros: it starts as the LSTM without them

    def extras(self) -> tuple[Tensor, ...]:
        return (self.peepholes,)

    def gates(self, projected: Tensor, state: CellState) -> dict[str, Tensor]:
        hidden, memory = state
        ingate, forget, candidate, output = self._add_hidden(projected, hidden).chunk(4, -1)
        peep_in, peep_forget, peep_out = self.peepholes.unbind()

        def peep(weight: Tensor, cell: Tensor) -> Tensor:
            return weight * cell if self.has_fused else linear(cell, weight)

        ingate, forget = (
            torch.sigmoid(ingate + peep(peep_in, memory)),
            torch.sigmoid(forget + peep(peep_forget, memory)),
        )
        candidate = torch.tanh(candidate)
        output = torch.sigmoid(output + peep(peep_out, forget * memory + ingate * candidate))
        return dict(zip(LSTM_BLOCKS, (ingate, forget, candidate, output), strict=True))

    def step(self, projected: Tensor, state: CellState) -> CellState:
        ingate, forget, candidate, output = self.gates(projected, state).values()
        memory = forget * state[1] + ingate * candidate
        return output * torch.tanh(memory), memory


class CoupledLSTMCell(Cell):
    """c = f⊙c' + (1−f)⊙ĉ, h = o⊙tanh(c); state (h, c), blocks f, o, ĉ."""

    blocks, num_states, block_names = 3, 2, ("forget gate", "output gate", "candidate")
    fused = FusedCoupledLSTM

    def __init__(self, config: CoupledLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.recurrent_init)
        nn.init.constant_(self.bias.data[:width], config.forget_bias)

    def gates(self, projected: Tensor, state: CellState) -> dict[str, Tensor]:
        """The input gate is 1 − the forget gate."""
        forget, output, candidate = self._add_hidden(projected, state[0]).chunk(3, -1)
        values = (torch.sigmoid(forget), torch.sigmoid(output), torch.tanh(candidate))
        return dict(zip(self.block_names, values, strict=True))

    def step(self, projected: Tensor, state: CellState) -> CellState:
        forget, output, candidate = self.gates(projected, state).values()
        memory = candidate + forget * (state[1] - candidate)
        return output * torch.tanh(memory), memory


class LayerNormLSTMCell(Cell):
    """Gates from norm(W_x x) + norm(W_h h') + b, h = o⊙tanh(norm(c)): Ba et al. 2016, equations 20–22.

    State (h, c), blocks i, f, ĉ, o. The first two norms have no bias of their own, because b is one.
    """

    blocks, num_states, block_names = 4, 2, LSTM_BLOCKS
    fused = FusedLayerNormLSTM

    def __init__(self, config: LayerNormLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.recurrent_init)
        nn.init.constant_(self.bias.data[width : 2 * width], config.forget_bias)
        self.input_norm = nn.LayerNorm(4 * width, bias=False)
        self.hidden_norm = nn.LayerNorm(4 * width, bias=False)
        self.memory_norm = nn.LayerNorm(width)

    def project(self, x: Tensor) -> Tensor:
        """norm(W_ih x) + b: (…, I) → (…, 4D)."""
        return self.finish_projection(F.linear(x, self.input_weight))

    def input_product(self, x: Tensor) -> Tensor:
        return linear(x, self.input_weight[:, : x.shape[-1]])

    def finish_projection(self, product: Tensor) -> Tensor:
        normed: Tensor = self.input_norm(product)
        return normed + self.bias

    def extras(self) -> tuple[Tensor, ...]:
        return self.hidden_norm.weight, self.memory_norm.weight, self.memory_norm.bias

    def gates(self, projected: Tensor, state: CellState) -> dict[str, Tensor]:
        return lstm_gates(projected + self.hidden_norm(linear(state[0], self.hidden_weight)))

    def step(self, projected: Tensor, state: CellState) -> CellState:
        ingate, forget, candidate, output = self.gates(projected, state).values()
        memory = forget * state[1] + ingate * candidate
        return output * torch.tanh(self.memory_norm(memory)), memory


class MogrifierLSTMCell(Cell):
    """x ← 2σ(Q_i h) ⊙ x and h ← 2σ(R_i x) ⊙ h in turn, then an LSTM step: Melis et al. 2020, equations 1 and 2.

    State (h, c), blocks i, f, ĉ, o. The product with W_ih comes after the gates, so an input is projected in its step.
    """

    blocks, num_states, block_names = 4, 2, LSTM_BLOCKS
    fused = FusedLSTM
    has_fused = False

    def __init__(self, config: MogrifierLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.recurrent_init)
        nn.init.constant_(self.bias.data[width : 2 * width], config.forget_bias)
        sizes = [(width, inputs) if number % 2 == 0 else (inputs, width) for number in range(config.rounds)]
        self.rounds = nn.ModuleList(
            nn.Sequential(nn.Linear(source, config.rank, bias=False), nn.Linear(config.rank, target))
            if config.rank
            else nn.Linear(source, target)
            for source, target in sizes
        )

    def project(self, x: Tensor) -> Tensor:
        return x

    def gates(self, projected: Tensor, state: CellState) -> dict[str, Tensor]:
        """σ of the gates and tanh of the candidate; `projected` is the input (N, I)."""
        x, hidden = projected, state[0]
        for number, gate in enumerate(self.rounds):
            if number % 2 == 0:
                x = 2 * torch.sigmoid(gate(hidden)) * x
            else:
                hidden = 2 * torch.sigmoid(gate(x)) * hidden
        return lstm_gates(self._add_hidden(F.linear(x, self.input_weight, self.bias), hidden))

    def step(self, projected: Tensor, state: CellState) -> CellState:
        ingate, forget, candidate, output = self.gates(projected, state).values()
        memory = forget * state[1] + ingate * candidate
        return output * torch.tanh(memory), memory

    def stepper(self, x: Tensor) -> Callable[[int, Tensor, CellState], CellState]:
        return lambda t, context, state: self(torch.cat([x[:, t], context], -1), state)[1]


class GRUCell(Cell):
    """h = u⊙h' + (1−u)⊙ĥ; blocks r, u, ĥ.

    ĥ = tanh(W x + r⊙(U h') + b) with the reset gate after the product, tanh(W x + U (r⊙h') + b) with the gate before.
    """

    blocks, num_states, block_names = 3, 1, ("reset gate", "update gate", "candidate")

    def __init__(self, config: GRUConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.recurrent_init)
        self.before = config.reset == "before"
        self.fused = FusedGRUResetBefore if self.before else FusedGRU
        self.torch_kernel = "gru" if not self.before and config.activation == "tanh" else ""
        self.has_fused = config.activation != "sigmoid"
        self.activation, self.activation_name = ACTIVATIONS[config.activation], config.activation

    def gates(self, projected: Tensor, state: CellState) -> dict[str, Tensor]:
        (hidden,), sizes = state, [2 * self.width, self.width]
        gates, candidate = torch.split(projected, sizes, -1)
        if self.before:
            gate_weight, candidate_weight = torch.split(self.hidden_weight, sizes)
            reset, update = torch.sigmoid(gates + linear(hidden, gate_weight)).chunk(2, -1)
            candidate = candidate + linear(reset * hidden, candidate_weight)
        else:
            to_gates, to_candidate = torch.split(linear(hidden, self.hidden_weight), sizes, -1)
            reset, update = torch.sigmoid(gates + to_gates).chunk(2, -1)
            candidate = candidate + reset * to_candidate
        return dict(zip(self.block_names, (reset, update, self.activation(candidate)), strict=True))

    def step(self, projected: Tensor, state: CellState) -> CellState:
        _, update, candidate = self.gates(projected, state).values()
        return (candidate + update * (state[0] - candidate),)

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """One step, x (N, I), with torch's fused cell where there is one."""
        if not self.torch_kernel or observed():
            return super().forward(x, state)
        hidden = torch.gru_cell(x, state[0], *self.torch_weights())
        return hidden, (hidden,)


CELLS: dict[type, Callable[..., Cell]] = {
    RNNConfig: RNNCell,
    LSTMConfig: LSTMCell,
    PeepholeLSTMConfig: PeepholeLSTMCell,
    CoupledLSTMConfig: CoupledLSTMCell,
    LayerNormLSTMConfig: LayerNormLSTMCell,
    MogrifierLSTMConfig: MogrifierLSTMCell,
    GRUConfig: GRUCell,
}


def build_cell(config: CellConfig, inputs: int, width: int) -> Cell:
    return CELLS[type(config)](config, inputs, width)
