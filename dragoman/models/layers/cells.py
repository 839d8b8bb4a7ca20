"""The kinds of recurrent cells: what each states is its gates, its step and its extra parameters, as in the paper.

A state is a tuple of tensors (N, D); the first is the output. `layers.recurrence` computes cells over time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Range, SizeOrNone, setting
from dragoman.models.kernels.deferred_gradients import linear
from dragoman.models.layers.recurrence import Cell, CellState, RecurrentInit

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
IN_CODE = {"tanh": "torch.tanh", "relu": "torch.relu", "sigmoid": "torch.sigmoid", "gelu": "F.gelu", "silu": "F.silu"}


def sums(letter: str, x: str = "x", hidden: str = "h_prev") -> str:
    """What a gate is an activation of, as code."""
    return f"W_{letter} @ {x} + U_{letter} @ {hidden} + b_{letter}"


class RNNCell(Cell):
    """h = tanh(W_hh h' + W_ih x + b)."""

    title = "Plain recurrent cell"
    blocks, num_states, block_names = 1, 1, ("candidate",)
    kernel = "rnn"

    def __init__(self, config: RNNConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.recurrent_init)
        self.activation, self.activation_name = ACTIVATIONS[config.activation], config.activation
        self.torch_kernel = f"rnn_{config.activation}"

    def gates(self, projected: Tensor, state: CellState) -> dict[str, Tensor]:
        return {"candidate": self.activation(self.add_hidden(projected, state[0]))}

    def step(self, projected: Tensor, state: CellState) -> CellState:
        return (self.gates(projected, state)["candidate"],)

    def equations(self) -> tuple[str, ...]:
        return (f"h = {IN_CODE[self.activation_name]}(W @ x + U @ h_prev + b)",)


class FourBlockLSTM(Cell):
    """c = f⊙c' + i⊙ĉ, h = o⊙tanh(c); state (h, c), blocks i, f, ĉ, o."""

    blocks, num_states = 4, 2
    block_names = ("input gate", "forget gate", "candidate", "output gate")
    letters = ("i", "f", "g", "o")
    activation: Callable[[Tensor], Tensor] = staticmethod(torch.tanh)  # of the candidate

    def __init__(self, config: Any, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.recurrent_init)
        nn.init.constant_(self.bias.data[width : 2 * width], config.forget_bias)  # Jozefowicz et al. 2015

    def preactivations(self, projected: Tensor, state: CellState) -> Tensor:
        """What the gates and the candidate are activations of: (N, 4D)."""
        return self.add_hidden(projected, state[0])

    def gates(self, projected: Tensor, state: CellState) -> dict[str, Tensor]:
        ingate, forget, candidate, output = self.preactivations(projected, state).chunk(4, -1)
        values = (torch.sigmoid(ingate), torch.sigmoid(forget), self.activation(candidate), torch.sigmoid(output))
        return dict(zip(self.block_names, values, strict=True))

    def squash(self, memory: Tensor) -> Tensor:
        """What the output gate multiplies."""
        return torch.tanh(memory)

    def step(self, projected: Tensor, state: CellState) -> CellState:
        ingate, forget, candidate, output = self.gates(projected, state).values()
        memory = forget * state[1] + ingate * candidate
        return output * self.squash(memory), memory

    def gate_equations(self, x: str = "x", hidden: str = "h_prev") -> tuple[str, ...]:
        inner = {letter: sums(letter, x, hidden) for letter in self.letters}
        return tuple(f"{name} = torch.{'tanh' if name == 'g' else 'sigmoid'}({inner[name]})" for name in self.letters)

    def equations(self) -> tuple[str, ...]:
        return (*self.gate_equations(), "c = f * c_prev + i * g", "h = o * torch.tanh(c)")


class LSTMCell(FourBlockLSTM):
    """The usual LSTM, in which other activations may replace both tanh."""

    title = "LSTM"

    def __init__(self, config: LSTMConfig, inputs: int, width: int) -> None:
        super().__init__(config, inputs, width)
        self.activation, self.activation_name = ACTIVATIONS[config.activation], config.activation
        self.output_activation, self.output_name = ACTIVATIONS[config.output_activation], config.output_activation
        if config.activation == config.output_activation == "tanh":
            self.kernel = self.torch_kernel = "lstm"

    def squash(self, memory: Tensor) -> Tensor:
        return self.output_activation(memory)

    def equations(self) -> tuple[str, ...]:
        ingate, forget, _, output, memory, _ = super().equations()
        candidate = f"g = {IN_CODE[self.activation_name]}({sums('g')})"
        return ingate, forget, candidate, output, memory, f"h = o * {IN_CODE[self.output_name]}(c)"


class PeepholeLSTMCell(FourBlockLSTM):
    """f and i also read p⊙c', o reads p⊙c; with full peepholes P c' and P c, P (D, D) for each gate.

    Peepholes are those of i, f, o.
    """

    title = "LSTM with peepholes"

    def __init__(self, config: PeepholeLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(config, inputs, width)
        self.diagonal = config.peepholes == "diagonal"
        self.kernel = "peephole-lstm" if self.diagonal else ""
        shape = (3, width) if self.diagonal else (3, width, width)
        self.peepholes = nn.Parameter(torch.zeros(shape))  # zeros: it starts as the LSTM without them

    def extras(self) -> tuple[Tensor, ...]:
        return (self.peepholes,)

    def gates(self, projected: Tensor, state: CellState) -> dict[str, Tensor]:
        hidden, memory = state
        ingate, forget, candidate, output = self.add_hidden(projected, hidden).chunk(4, -1)
        peep_in, peep_forget, peep_out = self.peepholes.unbind()

        def peep(weight: Tensor, cell: Tensor) -> Tensor:
            return weight * cell if self.diagonal else linear(cell, weight)

        ingate = torch.sigmoid(ingate + peep(peep_in, memory))
        forget = torch.sigmoid(forget + peep(peep_forget, memory))
        candidate = torch.tanh(candidate)
        output = torch.sigmoid(output + peep(peep_out, forget * memory + ingate * candidate))
        return dict(zip(self.block_names, (ingate, forget, candidate, output), strict=True))

    def equations(self) -> tuple[str, ...]:
        sign, name = ("*", "p") if self.diagonal else ("@", "P")
        gates = {
            gate: f"{gate} = torch.sigmoid({sums(gate)} + {name}_{gate} {sign} {memory})"
            for gate, memory in (("i", "c_prev"), ("f", "c_prev"), ("o", "c"))
        }
        candidate, _, memory, state = super().equations()[2:]
        return gates["i"], gates["f"], candidate, memory, gates["o"], state

    def symbols(self) -> dict[str, Tensor]:
        name = "p" if self.diagonal else "P"
        peepholes = zip("ifo", self.peepholes, strict=True)
        return super().symbols() | {f"{name}_{gate}": weight for gate, weight in peepholes}


class LayerNormLSTMCell(FourBlockLSTM):
    """Gates from norm(W_x x) + norm(W_h h') + b, h = o⊙tanh(norm(c)): Ba et al. 2016, equations 20–22.

    The first two norms have no bias of their own, because b is one.
    """

    title = "LSTM with layer norm"
    kernel = "layer-norm-lstm"

    def __init__(self, config: LayerNormLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(config, inputs, width)
        self.input_norm = nn.LayerNorm(4 * width, bias=False)
        self.hidden_norm = nn.LayerNorm(4 * width, bias=False)
        self.memory_norm = nn.LayerNorm(width)

    def input_product(self, x: Tensor, weight: Tensor) -> Tensor:
        return linear(x, weight)

    def finish_projection(self, product: Tensor) -> Tensor:
        normed: Tensor = self.input_norm(product)
        return normed + self.bias

    def extras(self) -> tuple[Tensor, ...]:
        return self.hidden_norm.weight, self.memory_norm.weight, self.memory_norm.bias

    def preactivations(self, projected: Tensor, state: CellState) -> Tensor:
        normed: Tensor = self.hidden_norm(linear(state[0], self.hidden_weight))
        return projected + normed

    def squash(self, memory: Tensor) -> Tensor:
        return torch.tanh(self.memory_norm(memory))

    def equations(self) -> tuple[str, ...]:
        return (
            "a = F.layer_norm(W @ x, b.shape, gamma_x) + F.layer_norm(U @ h_prev, b.shape, gamma_h) + b",
            "a_i, a_f, a_g, a_o = torch.chunk(a, 4)",
            *(f"{name} = torch.{'tanh' if name == 'g' else 'sigmoid'}(a_{name})" for name in self.letters),
            "c = f * c_prev + i * g",
            "h = o * torch.tanh(F.layer_norm(c, c.shape, gamma_c, beta_c))",
        )

    def symbols(self) -> dict[str, Tensor]:
        norms = {"x": self.input_norm, "h": self.hidden_norm, "c": self.memory_norm}
        parts: dict[str, Tensor] = {"W": self.input_weight, "U": self.hidden_weight, "b": self.bias}
        gammas: dict[str, Tensor] = {f"gamma_{name}": norm.weight for name, norm in norms.items()}
        return parts | gammas | {"beta_c": self.memory_norm.bias}


class MogrifierLSTMCell(FourBlockLSTM):
    """x ← 2σ(Q_i h) ⊙ x and h ← 2σ(R_i x) ⊙ h in turn, then an LSTM step: Melis et al. 2020, equations 1 and 2.

    The product with W_ih comes after the gates, so an input is projected in its step.
    """

    title = "Mogrifier LSTM"
    projects_first = False

    def __init__(self, config: MogrifierLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(config, inputs, width)
        sizes = [(width, inputs) if number % 2 == 0 else (inputs, width) for number in range(config.rounds)]
        self.rounds = nn.ModuleList(
            nn.Sequential(nn.Linear(source, config.rank, bias=False), nn.Linear(config.rank, target))
            if config.rank
            else nn.Linear(source, target)
            for source, target in sizes
        )

    def project(self, x: Tensor) -> Tensor:
        """The input itself."""
        return x

    def preactivations(self, projected: Tensor, state: CellState) -> Tensor:
        x, hidden = projected, state[0]
        for number, gate in enumerate(self.rounds):
            if number % 2 == 0:
                x = 2 * torch.sigmoid(gate(hidden)) * x
            else:
                hidden = 2 * torch.sigmoid(gate(x)) * hidden
        return self.add_hidden(F.linear(x, self.input_weight, self.bias), hidden)

    def equations(self) -> tuple[str, ...]:
        names, lines = ["x", "h_prev"], []  # what is gated next, and what gates it
        for number, gate in enumerate(self.rounds, 1):
            product = f"B_{number} @ (A_{number} @ {names[1]})" if isinstance(gate, nn.Sequential) else (
                f"Q_{number} @ {names[1]}"
            )  # fmt: skip
            gated = f"{names[0][0]}_{number}"
            lines.append(f"{gated} = 2 * torch.sigmoid({product} + q_{number}) * {names[0]}")
            names = [names[1], gated]
        x, hidden = names if len(self.rounds) % 2 == 0 else names[::-1]
        return (*lines, *self.gate_equations(x, hidden), *super().equations()[4:])

    def symbols(self) -> dict[str, Tensor]:
        symbols = super().symbols()
        for number, gate in enumerate(self.rounds, 1):
            parts: list[Any] = list(gate.children()) or [gate]
            names = ("A", "B") if len(parts) == 2 else ("Q",)
            symbols |= {f"{name}_{number}": part.weight for name, part in zip(names, parts, strict=True)}
            symbols[f"q_{number}"] = parts[-1].bias
        return symbols


class CoupledLSTMCell(Cell):
    """c = f⊙c' + (1−f)⊙ĉ, h = o⊙tanh(c); state (h, c), blocks f, o, ĉ."""

    title = "LSTM with coupled gates"
    blocks, num_states, block_names = 3, 2, ("forget gate", "output gate", "candidate")
    letters = ("f", "o", "g")
    kernel = "coupled-lstm"

    def __init__(self, config: CoupledLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.recurrent_init)
        nn.init.constant_(self.bias.data[:width], config.forget_bias)

    def gates(self, projected: Tensor, state: CellState) -> dict[str, Tensor]:
        """The input gate is 1 − the forget gate."""
        forget, output, candidate = self.add_hidden(projected, state[0]).chunk(3, -1)
        values = (torch.sigmoid(forget), torch.sigmoid(output), torch.tanh(candidate))
        return dict(zip(self.block_names, values, strict=True))

    def step(self, projected: Tensor, state: CellState) -> CellState:
        forget, output, candidate = self.gates(projected, state).values()
        memory = candidate + forget * (state[1] - candidate)
        return output * torch.tanh(memory), memory

    def equations(self) -> tuple[str, ...]:
        gates = (f"{name} = torch.{'tanh' if name == 'g' else 'sigmoid'}({sums(name)})" for name in self.letters)
        return (*gates, "c = f * c_prev + (1 - f) * g", "h = o * torch.tanh(c)")


class GRUCell(Cell):
    """h = z⊙h' + (1−z)⊙n; blocks r, z, n.

    n = tanh(W x + r⊙(U h') + b) with the reset gate after the product, tanh(W x + U (r⊙h') + b) with the gate before.
    """

    blocks, num_states, block_names = 3, 1, ("reset gate", "update gate", "candidate")
    letters = ("r", "z", "n")

    def __init__(self, config: GRUConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.recurrent_init)
        self.before = config.reset == "before"
        self.title = f"GRU, reset gate {config.reset} the product"
        self.activation, self.activation_name = ACTIVATIONS[config.activation], config.activation
        if not self.before:
            self.torch_kernel = "gru" if config.activation == "tanh" else ""
            self.kernel = "gru" if config.activation != "sigmoid" else ""

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

    def equations(self) -> tuple[str, ...]:
        product = "U_n @ (r * h_prev)" if self.before else "r * (U_n @ h_prev)"
        return (
            f"r = torch.sigmoid({sums('r')})",
            f"z = torch.sigmoid({sums('z')})",
            f"n = {IN_CODE[self.activation_name]}(W_n @ x + {product} + b_n)",
            "h = z * h_prev + (1 - z) * n",
        )


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
    cell = CELLS[type(config)](config, inputs, width)
    cell.config = config
    return cell
