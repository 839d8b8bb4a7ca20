"""Recurrent cells: `cell(x, state) -> (output, state)`.

A state is a tuple of tensors (N, D); the first is the output. A step is `step(project(x), state)`. The projection of
the input does not depend on the state, so `sequence` projects all steps in one product and then runs the recurrence:
step by step on a CPU; on a GPU by torch's kernel (`kernels.torch_rnn`) or, in training, by compiled equations
(`kernels.recurrence`). Tests compare all of them. A cell has one bias per gate; torch's layers have two that are always
added. Inside `observe_cells` every cell runs step by step and shows each step to an observer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import setting
from dragoman.kernels import recurrence
from dragoman.kernels.deferred_gradients import deferring, linear
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
    activation: Activation = setting("tanh", help="activation of the candidate; torch has kernels for tanh only")
    output_activation: Activation = setting(
        "tanh", help="activation of the memory cell before the output gate; torch has kernels for tanh only"
    )
    forget_bias: float = setting(1.0, help=FORGET_BIAS)
    recurrent_init: RecurrentInit = setting("orthogonal", help=RECURRENT_INIT)


@dataclass(frozen=True)
class PeepholeLSTMConfig:
    """An LSTM whose gates also read the memory cell, Gers and Schmidhuber 2000."""

    kind: ClassVar[str] = "peephole-lstm"
    peepholes: Literal["diagonal", "full"] = setting(
        "diagonal",
        help="weights of the memory cell: diagonal, one per unit; full, a matrix per gate (slower on a GPU)",
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
class GRUConfig:
    """Gated recurrent unit, Cho et al. 2014."""

    kind: ClassVar[str] = "gru"
    reset: Literal["after", "before"] = setting(
        "after", help="reset gate after the product with W_hh (torch, cuDNN) or before it (the paper)"
    )
    activation: Literal["tanh", "relu", "sigmoid", "gelu", "silu"] = setting(
        "tanh", help="activation of the candidate; torch has kernels for tanh only"
    )
    recurrent_init: RecurrentInit = setting("orthogonal", help=RECURRENT_INIT)


CellConfig = RNNConfig | LSTMConfig | PeepholeLSTMConfig | CoupledLSTMConfig | LayerNormLSTMConfig | GRUConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "silu": F.silu,
}
# Torch's own cells, by the name of its function for sequences.
TORCH_CELLS: dict[str, Callable[[Tensor, CellState, list[Tensor]], CellState]] = {
    "lstm": lambda x, state, weights: torch.lstm_cell(x, list(state), *weights),
    "gru": lambda x, state, weights: (torch.gru_cell(x, state[0], *weights),),
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
    """Whether there is an observer: then no kernel may hide a step."""
    return not torch.compiler.is_compiling() and _observer.get() is not None


class Cell(nn.Module):
    """What all cells share: one block of weight rows per gate or candidate, and how sequences are computed."""

    block_names: ClassVar[tuple[str, ...]]  # what each block of weight rows computes
    num_states: int  # tensors in the state
    torch_kernel = ""  # the name of torch's function for whole sequences, if there is one
    pointwise = True  # a step multiplies by W_hh once; all else is pointwise, or a norm

    def __init__(self, config: Any, inputs: int, width: int) -> None:
        super().__init__()
        self.blocks = len(self.block_names)
        self.inputs, self.width = inputs, width
        self.input_weight = nn.Parameter(torch.empty(self.blocks * width, inputs))
        self.hidden_weight = nn.Parameter(torch.empty(self.blocks * width, width))
        self.bias = nn.Parameter(torch.zeros(self.blocks * width))
        for block in self.input_weight.chunk(self.blocks):
            nn.init.xavier_uniform_(block)
        for block in self.hidden_weight.chunk(self.blocks):
            INITIALISERS[config.recurrent_init](block)
        if "forget gate" in self.block_names:  # Jozefowicz et al. 2015
            forget = self.bias.data.chunk(self.blocks)[self.block_names.index("forget gate")]
            nn.init.constant_(forget, config.forget_bias)

    def start(self, rows: int) -> CellState:
        """The state before the first step: zeros."""
        return tuple(self.bias.new_zeros(rows, self.width) for _ in range(self.num_states))

    # --- The equations

    def project(self, x: Tensor) -> Tensor:
        """W_ih x + b: (…, I) → (…, blocks·D)."""
        return F.linear(x, self.input_weight, self.bias)

    def input_product(self, x: Tensor) -> Tensor:
        """`project` before `finish_projection`; where x is narrower than the input, of its first entries only."""
        return linear(x, self.input_weight[:, : x.shape[-1]], self.bias)

    def finish_projection(self, product: Tensor) -> Tensor:
        """What follows after the product of the whole input: nothing, but for a norm in some cells."""
        return product

    def hidden_product(self, state: CellState) -> Tensor:
        """W_hh h' (N, blocks·D)."""
        return linear(state[0].to(self.hidden_weight.dtype), self.hidden_weight)

    def extras(self) -> tuple[Tensor, ...]:
        """Parameters of the recurrence beside W_hh."""
        return ()

    def values(self, projected: Tensor, product: Tensor, state: CellState, *extras: Tensor) -> tuple[Tensor, ...]:
        """The gates and the candidate of one step in the order of `block_names`, each (N, D)."""
        raise NotImplementedError

    def after(self, values: tuple[Tensor, ...], state: CellState, *extras: Tensor) -> CellState:
        """The state after a step, from the gates, the candidate and the state before."""
        raise NotImplementedError

    def equations(self, projected: Tensor, product: Tensor, state: CellState, *extras: Tensor) -> CellState:
        """The state after a step, in at least float32, from W_ih x + b and W_hh h', both (N, blocks·D)."""
        precise = torch.promote_types(projected.dtype, torch.float32)
        extras = tuple(extra.to(precise) for extra in extras)
        return self.after(self.values(projected.to(precise), product.to(precise), state, *extras), state, *extras)

    def gates(self, projected: Tensor, state: CellState) -> dict[str, Tensor]:
        """The gates and the candidate of one step by name, each (N, D); projected (N, blocks·D), the state before."""
        values = self.values(projected, self.hidden_product(state), state, *self.extras())
        return dict(zip(self.block_names, values, strict=True))

    def step(self, projected: Tensor, state: CellState) -> CellState:
        """The state after one step; projected (N, blocks·D)."""
        return self.equations(projected, self.hidden_product(state), state, *self.extras())

    def shown_step(self, projected: Tensor, state: CellState) -> CellState:
        """`step`, shown to the observer if there is one."""
        after = self.step(projected, state)
        if observed() and (observer := _observer.get()) is not None:
            observer(self, projected, state, after)
        return after

    def rounded_step(self, projected: Tensor, state: CellState) -> CellState:
        """`shown_step` in the precision of the weights, for a model in half precision."""
        return tuple(part.to(self.bias.dtype) for part in self.shown_step(projected, state))

    # --- How they are computed

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """One step: x (N, I) → output (N, D) and the state after it; by torch's fused cell where there is one."""
        if self.torch_kernel in TORCH_CELLS and not observed() and not is_exporting():
            after = TORCH_CELLS[self.torch_kernel](x, state, self.torch_weights())
        else:
            after = self.rounded_step(self.project(x), state)
        return after[0], after

    def run(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """x (N, T, I), T ≥ 1 → outputs (N, T, D) and the state after them; one step needs no set-up of a sequence."""
        if x.shape[1] > 1:
            return self.sequence(x, state)
        if deferring():
            after = self.rounded_step(self.finish_projection(self.input_product(x[:, 0])), state)
        else:
            _, after = self(x[:, 0], state)
        return after[0][:, None], after

    def stepper(self, x: Tensor) -> Callable[[int, Tensor, CellState], CellState]:
        """A function (t, context, state) → state of a step with the input [x_t; context], for a loop over time.

        x (N, T, X) is known before the loop. W [x; c] = W_x x + W_c c, so one product computes W_x x of all steps.
        """
        if x.shape[1] == 1:
            return lambda t, context, state: self(torch.cat([x[:, t], context], -1), state)[1]
        projected = self.input_product(x.transpose(0, 1)).unbind(0)  # T times (N, blocks·D)
        weight = self.input_weight[:, x.shape[-1] :]

        def step(t: int, context: Tensor, state: CellState) -> CellState:
            return self.rounded_step(self.finish_projection(projected[t] + linear(context, weight)), state)

        return step

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
        if self.pointwise and recurrence.supports(x) and not observed():
            projected = self.project(x.transpose(0, 1))
            states = recurrence.recurrence(self, projected, self.hidden_weight, state, self.extras())
            return tuple(part.transpose(0, 1).to(self.bias.dtype) for part in states)
        return self.plain_loop(x, state)

    def plain_loop(self, x: Tensor, state: CellState) -> CellState:
        """`all_states` step by step; time first in the product, so that every step is contiguous."""
        steps = []
        for projected in self.project(x.transpose(0, 1)).unbind(0):  # (N, blocks·D)
            state = self.shown_step(projected, state)
            steps.append(state)
        return tuple(torch.stack(part, 1).to(self.bias.dtype) for part in zip(*steps, strict=True))

    def scan_loop(self, x: Tensor, state: CellState) -> CellState:
        """`all_states` as one operation for exported graphs, in which the number of steps may change."""
        from torch._higher_order_ops.scan import scan

        def step(before: CellState, projected: Tensor) -> tuple[CellState, CellState]:
            after = self.step(projected, before)
            return after, tuple(part.clone() for part in after)

        _, states = scan(step, tuple(state), self.project(x.transpose(0, 1)))
        return tuple(part.transpose(0, 1) for part in states)

    def torch_weights(self) -> list[Tensor]:
        """Weights as torch's kernels expect them, with zeros for the second bias."""
        return [self.input_weight, self.hidden_weight, self.bias, torch.zeros_like(self.bias)]


class RNNCell(Cell):
    """h = tanh(W_hh h' + W_ih x + b)."""

    num_states, block_names = 1, ("candidate",)

    def __init__(self, config: RNNConfig, inputs: int, width: int) -> None:
        super().__init__(config, inputs, width)
        self.activation = ACTIVATIONS[config.activation]
        self.torch_kernel = f"rnn_{config.activation}"

    def values(self, projected: Tensor, product: Tensor, state: CellState, *extras: Tensor) -> tuple[Tensor, ...]:
        return (self.activation(projected + product),)

    def after(self, values: tuple[Tensor, ...], state: CellState, *extras: Tensor) -> CellState:
        return values


class LSTMCell(Cell):
    """c = f⊙c' + i⊙ĉ, h = o⊙tanh(c); state (h, c), blocks i, f, ĉ, o. Other activations may replace both tanh."""

    num_states, block_names = 2, ("input gate", "forget gate", "candidate", "output gate")

    def __init__(self, config: LSTMConfig, inputs: int, width: int) -> None:
        super().__init__(config, inputs, width)
        self.activation, self.output_activation = (
            ACTIVATIONS[name] for name in (config.activation, config.output_activation)
        )
        self.torch_kernel = "lstm" if config.activation == config.output_activation == "tanh" else ""

    def values(self, projected: Tensor, product: Tensor, state: CellState, *extras: Tensor) -> tuple[Tensor, ...]:
        ingate, forget, candidate, output = (projected + product).chunk(4, -1)
        return torch.sigmoid(ingate), torch.sigmoid(forget), self.activation(candidate), torch.sigmoid(output)

    def after(self, values: tuple[Tensor, ...], state: CellState, *extras: Tensor) -> CellState:
        ingate, forget, candidate, output = values
        memory = forget * state[1] + ingate * candidate
        return output * self.output_activation(memory), memory


class PeepholeLSTMCell(Cell):
    """f and i also read p⊙c', o reads p⊙c; with full peepholes P c' and P c, P (D, D) for each gate.

    State (h, c), blocks i, f, ĉ, o, peepholes i, f, o.
    """

    num_states, block_names = 2, LSTMCell.block_names

    def __init__(self, config: PeepholeLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(config, inputs, width)
        self.pointwise = config.peepholes == "diagonal"
        shape = (3, width) if self.pointwise else (3, width, width)
        self.peepholes = nn.Parameter(torch.zeros(shape))  # zeros: it starts as the LSTM without them

    def extras(self) -> tuple[Tensor, ...]:
        return (self.peepholes,)

    def values(self, projected: Tensor, product: Tensor, state: CellState, *extras: Tensor) -> tuple[Tensor, ...]:
        ingate, forget, candidate, output = (projected + product).chunk(4, -1)
        peep_in, peep_forget, peep_out = extras[0].unbind()
        memory = state[1].to(extras[0].dtype)

        def peep(weight: Tensor, cell: Tensor) -> Tensor:
            return weight * cell if self.pointwise else linear(cell, weight)

        ingate = torch.sigmoid(ingate + peep(peep_in, memory))
        forget = torch.sigmoid(forget + peep(peep_forget, memory))
        candidate = torch.tanh(candidate)
        output = torch.sigmoid(output + peep(peep_out, forget * memory + ingate * candidate))
        return ingate, forget, candidate, output

    def after(self, values: tuple[Tensor, ...], state: CellState, *extras: Tensor) -> CellState:
        ingate, forget, candidate, output = values
        memory = forget * state[1] + ingate * candidate
        return output * torch.tanh(memory), memory


class CoupledLSTMCell(Cell):
    """c = f⊙c' + (1−f)⊙ĉ, h = o⊙tanh(c); state (h, c), blocks f, o, ĉ."""

    num_states, block_names = 2, ("forget gate", "output gate", "candidate")

    def values(self, projected: Tensor, product: Tensor, state: CellState, *extras: Tensor) -> tuple[Tensor, ...]:
        """The input gate is 1 − the forget gate."""
        forget, output, candidate = (projected + product).chunk(3, -1)
        return torch.sigmoid(forget), torch.sigmoid(output), torch.tanh(candidate)

    def after(self, values: tuple[Tensor, ...], state: CellState, *extras: Tensor) -> CellState:
        forget, output, candidate = values
        memory = candidate + forget * (state[1] - candidate)
        return output * torch.tanh(memory), memory


class LayerNormLSTMCell(Cell):
    """Gates from norm(W_x x) + norm(W_h h') + b, h = o⊙tanh(norm(c)): Ba et al. 2016, equations 20–22.

    State (h, c), blocks i, f, ĉ, o. The first two norms have no bias of their own, because b is one.
    """

    num_states, block_names = 2, LSTMCell.block_names

    def __init__(self, config: LayerNormLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(config, inputs, width)
        self.input_norm = nn.LayerNorm(4 * width, bias=False)
        self.hidden_norm = nn.LayerNorm(4 * width, bias=False)
        self.memory_norm = nn.LayerNorm(width)

    def project(self, x: Tensor) -> Tensor:
        """norm(W_ih x) + b: (…, I) → (…, 4D)."""
        return self.finish_projection(F.linear(x, self.input_weight))

    def input_product(self, x: Tensor) -> Tensor:
        return linear(x, self.input_weight[:, : x.shape[-1]])

    def finish_projection(self, product: Tensor) -> Tensor:
        return self.input_norm(product) + self.bias

    def extras(self) -> tuple[Tensor, ...]:
        return self.hidden_norm.weight, self.memory_norm.weight, self.memory_norm.bias

    def values(self, projected: Tensor, product: Tensor, state: CellState, *extras: Tensor) -> tuple[Tensor, ...]:
        total = projected + F.layer_norm(product, product.shape[-1:], extras[0])
        ingate, forget, candidate, output = total.chunk(4, -1)
        return torch.sigmoid(ingate), torch.sigmoid(forget), torch.tanh(candidate), torch.sigmoid(output)

    def after(self, values: tuple[Tensor, ...], state: CellState, *extras: Tensor) -> CellState:
        ingate, forget, candidate, output = values
        memory = forget * state[1] + ingate * candidate
        return output * torch.tanh(F.layer_norm(memory, memory.shape[-1:], extras[1], extras[2])), memory


class GRUCell(Cell):
    """h = u⊙h' + (1−u)⊙ĥ; blocks r, u, ĥ.

    ĥ = tanh(W x + r⊙(U h') + b) with the reset gate after the product, tanh(W x + U (r⊙h') + b) with the gate before.
    """

    num_states, block_names = 1, ("reset gate", "update gate", "candidate")

    def __init__(self, config: GRUConfig, inputs: int, width: int) -> None:
        super().__init__(config, inputs, width)
        self.before = config.reset == "before"
        self.pointwise = not self.before
        self.torch_kernel = "gru" if self.pointwise and config.activation == "tanh" else ""
        self.activation = ACTIVATIONS[config.activation]

    def hidden_product(self, state: CellState) -> Tensor:
        """With the reset gate before the product, of the gates alone: the candidate's needs the reset gate."""
        weight = self.hidden_weight[: 2 * self.width] if self.before else self.hidden_weight
        return linear(state[0].to(weight.dtype), weight)

    def values(self, projected: Tensor, product: Tensor, state: CellState, *extras: Tensor) -> tuple[Tensor, ...]:
        width = self.width
        reset, update = torch.sigmoid(projected[:, : 2 * width] + product[:, : 2 * width]).chunk(2, -1)
        if self.before:
            weight = self.hidden_weight[2 * width :]
            to_candidate = linear((reset * state[0]).to(weight.dtype), weight)
        else:
            to_candidate = reset * product[:, 2 * width :]
        return reset, update, self.activation(projected[:, 2 * width :] + to_candidate)

    def after(self, values: tuple[Tensor, ...], state: CellState, *extras: Tensor) -> CellState:
        _, update, candidate = values
        return (candidate + update * (state[0] - candidate),)


CELLS: dict[type, Callable[..., Cell]] = {
    RNNConfig: RNNCell,
    LSTMConfig: LSTMCell,
    PeepholeLSTMConfig: PeepholeLSTMCell,
    CoupledLSTMConfig: CoupledLSTMCell,
    LayerNormLSTMConfig: LayerNormLSTMCell,
    GRUConfig: GRUCell,
}


def build_cell(config: CellConfig, inputs: int, width: int) -> Cell:
    return CELLS[type(config)](config, inputs, width)
