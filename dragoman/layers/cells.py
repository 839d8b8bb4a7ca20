"""Recurrent cells (FIELD B1–B5, B9), one contract: `cell(x, state) -> (y, state)`.

A state is a tuple of (N, D) tensors whose first is the output. A step is `advance(project(x), state)`: what the input
adds to the gates does not depend on the state, so `sequence` projects all steps in one product and only then walks
through time: by torch's own kernel where that is the fastest (`BY_TORCH`), by our walk (`walk.py`) everywhere else.
`loop` says the same by plain steps, and tests hold all of them against each other. A cell holds one bias per gate
(torch's own layers carry two that always add up).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import setting
from dragoman.kernels.deferred_gradients import DIRECT, Products
from dragoman.kernels.fused_rnn import (
    CoupledWalk,
    GRUBeforeWalk,
    GRUWalk,
    LSTMWalk,
    NormalisedWalk,
    PeepholeWalk,
    Walk,
    stepped,
    walked,
)
from dragoman.kernels.half_precision_rnn import in_half_precision

# cuDNN would like all weights of a layer in one block; they are small, and gathering them costs nothing that shows.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")

CellState = tuple[Tensor, ...]  # each (N, D); the first is the output

Start = Literal["orthogonal", "identity", "uniform"]
START = "how W_hh starts, gate by gate: lengths kept (orthogonal, identity) or uniform within 1/√width"
FORGET_BIAS = "bias of the forget gate at the start; above 0 it stands open, so that gradients reach far back"


@dataclass(frozen=True)
class PlainConfig:
    """The plain cell of Elman 1990; with relu and an identity start, that of Le et al. 2015."""

    kind: ClassVar[str] = "plain"
    activation: Literal["tanh", "relu"] = setting("tanh", help="what bends the new state")
    start: Start = setting("orthogonal", help=START)


@dataclass(frozen=True)
class LSTMConfig:
    """Long short-term memory, Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000."""

    kind: ClassVar[str] = "lstm"
    forget_bias: float = setting(1.0, help=FORGET_BIAS)
    start: Start = setting("orthogonal", help=START)


@dataclass(frozen=True)
class PeepholeLSTMConfig:
    """An LSTM whose gates also see the memory they guard, Gers and Schmidhuber 2000."""

    kind: ClassVar[str] = "peephole-lstm"
    forget_bias: float = setting(1.0, help=FORGET_BIAS)
    start: Start = setting("orthogonal", help=START)


@dataclass(frozen=True)
class CoupledLSTMConfig:
    """An LSTM that writes exactly as much as it forgets, Greff et al. 2017: a quarter fewer parameters."""

    kind: ClassVar[str] = "coupled-lstm"
    forget_bias: float = setting(1.0, help=FORGET_BIAS)
    start: Start = setting("orthogonal", help=START)


@dataclass(frozen=True)
class NormalisedLSTMConfig:
    """An LSTM with layer norm inside, Ba et al. 2016."""

    kind: ClassVar[str] = "normalised-lstm"
    forget_bias: float = setting(1.0, help=FORGET_BIAS)
    start: Start = setting("orthogonal", help=START)


@dataclass(frozen=True)
class GRUConfig:
    """Gated recurrent unit, Cho et al. 2014."""

    kind: ClassVar[str] = "gru"
    reset: Literal["after", "before"] = setting(
        "after", help="reset gate after the product with W_hh (torch, cuDNN) or before it (the paper)"
    )
    activation: Literal["tanh", "relu", "gelu", "silu"] = setting("tanh", help="what bends the candidate")
    start: Start = setting("orthogonal", help=START)


CellConfig = PlainConfig | LSTMConfig | PeepholeLSTMConfig | CoupledLSTMConfig | NormalisedLSTMConfig | GRUConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
}
# Where torch's own kernel for a whole sequence beats our walk, by device; measured by benchmarks/recurrence.py.
BY_TORCH: dict[str, frozenset[str]] = {"cpu": frozenset(), "cuda": frozenset({"plain", "lstm", "gru"})}
STARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "orthogonal": nn.init.orthogonal_,
    "identity": nn.init.eye_,
    "uniform": lambda block: nn.init.uniform_(block, -(block.shape[1] ** -0.5), block.shape[1] ** -0.5),
}


class Cell(nn.Module):
    """What all cells share: `blocks` of weight rows, one per gate or candidate, and the walk through time."""

    blocks: int
    parts: int  # tensors in the state
    walk: type[Walk]
    bend = "tanh"  # what bends the candidate
    by_torch = ""  # the name of torch's kernel for whole sequences, if there is one

    def __init__(self, inputs: int, width: int, start: Start) -> None:
        super().__init__()
        self.inputs, self.width = inputs, width
        self.input_weight = nn.Parameter(torch.empty(self.blocks * width, inputs))
        self.hidden_weight = nn.Parameter(torch.empty(self.blocks * width, width))
        self.bias = nn.Parameter(torch.zeros(self.blocks * width))
        for block in self.input_weight.chunk(self.blocks):
            nn.init.xavier_uniform_(block)
        for block in self.hidden_weight.chunk(self.blocks):
            STARTS[start](block)

    def start(self, rows: int) -> CellState:
        """The state before anything was read."""
        return tuple(self.bias.new_zeros(rows, self.width) for _ in range(self.parts))

    def project(self, x: Tensor) -> Tensor:
        """What the input adds to every block, bias included: (…, I) → (…, blocks·D)."""
        return F.linear(x, self.input_weight, self.bias)

    def multiply(self, x: Tensor, products: Products = DIRECT) -> Tensor:
        """`project` but for `settle`; of the first entries of the inputs alone, where x has no more."""
        return products.linear(x, self.input_weight[:, : x.shape[-1]], self.bias)

    def settle(self, product: Tensor) -> Tensor:
        """What is left to do once all of the input was multiplied."""
        return product

    def advance(self, projected: Tensor, state: CellState, products: Products = DIRECT) -> CellState:
        """The state one step later; projected (N, blocks·D)."""
        raise NotImplementedError

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """One step: x (N, I) → output (N, D)."""
        state = self.advance(self.project(x), state)
        return state[0], state

    def step(self, projected: Tensor, state: CellState, products: Products) -> CellState:
        """`advance` as one step of autograd, for a loop that something else takes part in."""
        if products is DIRECT or self.walk is GRUBeforeWalk:  # which multiplies twice a step
            return self.advance(projected, state, products)
        return stepped(
            self.walk, projected, products.linear(state[0], self.hidden_weight), state, self.extras(), self.bend
        )

    def sequence(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """Every step of x (N, T, I) → outputs (N, T, D) and the state after the last."""
        if self.by_torch in BY_TORCH.get(x.device.type, ()):
            if torch.is_autocast_enabled(x.device.type) or x.dtype.itemsize == 2:
                return in_half_precision(self.torchs, x, state, self._weights(), self.blocks)
            return self.torchs(x, state, self._weights())
        states = self.states(x, state)
        return states[0], tuple(part[:, -1] for part in states)

    def states(self, x: Tensor, state: CellState) -> CellState:
        """The whole state after every step of x (N, T, I), each part (N, T, D)."""
        if torch.compiler.is_compiling():  # a compiler sees through plain steps, and fuses them itself
            return self.loop(x, state)
        projected = self.project(x.transpose(0, 1))
        states = walked(self.walk, projected, self.hidden_weight, state, self.extras(), self.bend)
        # A walk keeps at least float32, also of a model that is in half precision as a whole.
        return tuple(part.transpose(0, 1).to(self.bias.dtype) for part in states)

    def loop(self, x: Tensor, state: CellState) -> CellState:
        """`states` by plain steps, time first in the product so that every step is contiguous."""
        steps = []
        for projected in self.project(x.transpose(0, 1)).unbind(0):  # (N, blocks·D)
            state = self.advance(projected, state)
            steps.append(state)
        return tuple(torch.stack(part, 1) for part in zip(*steps, strict=True))

    def torchs(self, x: Tensor, state: CellState, weights: list[Tensor]) -> tuple[Tensor, CellState]:
        """`sequence` by torch's own kernel, with weights as `_weights` gives them."""
        raise NotImplementedError

    def extras(self) -> tuple[Tensor, ...]:
        """Parameters beside weights and bias that a walk reads."""
        return ()

    def _add_hidden(self, projected: Tensor, hidden: Tensor, products: Products) -> Tensor:
        if products is DIRECT:
            return torch.addmm(projected, hidden, self.hidden_weight.t())
        return projected + products.linear(hidden, self.hidden_weight)

    def _weights(self) -> list[Tensor]:
        """In the order torch's kernels want them, with the second bias that we do not have."""
        return [self.input_weight, self.hidden_weight, self.bias, torch.zeros_like(self.bias)]


class PlainCell(Cell):
    """h = tanh(W_hh h' + W_xh x + b) (FIELD B1)."""

    blocks, parts = 1, 1
    walk, by_torch = Walk, "plain"

    def __init__(self, config: PlainConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.start)
        self.activation, self.bend = ACTIVATIONS[config.activation], config.activation
        self.fused = {"tanh": torch.rnn_tanh, "relu": torch.rnn_relu}[config.activation]

    def advance(self, projected: Tensor, state: CellState, products: Products = DIRECT) -> CellState:
        """The state one step later; projected (N, D)."""
        return (self.activation(self._add_hidden(projected, state[0], products)),)

    def torchs(self, x: Tensor, state: CellState, weights: list[Tensor]) -> tuple[Tensor, CellState]:
        """See Cell."""
        start = state[0][None].contiguous()
        out, hidden = self.fused(x, start, weights, True, 1, 0.0, self.training, False, True)
        return out, (hidden[0],)


class LSTMCell(Cell):
    """c = f⊙c' + i⊙ĉ, h = o⊙tanh(c) (FIELD B2); state (h, c), rows i, f, ĉ, o."""

    blocks, parts = 4, 2
    walk, by_torch = LSTMWalk, "lstm"

    def __init__(self, config: LSTMConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.start)
        nn.init.constant_(self.bias.data[width : 2 * width], config.forget_bias)  # Jozefowicz et al. 2015

    def advance(self, projected: Tensor, state: CellState, products: Products = DIRECT) -> CellState:
        """The state one step later; projected (N, 4D)."""
        write, forget, candidate, output = self._add_hidden(projected, state[0], products).chunk(4, -1)
        memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(write) * torch.tanh(candidate)
        return torch.sigmoid(output) * torch.tanh(memory), memory

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """One step, x (N, I), with torch's fused cell."""
        hidden, memory = torch.lstm_cell(x, list(state), *self._weights())
        return hidden, (hidden, memory)

    def torchs(self, x: Tensor, state: CellState, weights: list[Tensor]) -> tuple[Tensor, CellState]:
        """See Cell."""
        start = [part[None].contiguous() for part in state]
        out, hidden, memory = torch.lstm(x, start, weights, True, 1, 0.0, self.training, False, True)
        return out, (hidden[0], memory[0])


class PeepholeLSTMCell(Cell):
    """f and i also read p⊙c', o reads p⊙c (FIELD B3); state (h, c), rows i, f, ĉ, o, peepholes i, f, o."""

    blocks, parts = 4, 2
    walk = PeepholeWalk

    def __init__(self, config: PeepholeLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.start)
        nn.init.constant_(self.bias.data[width : 2 * width], config.forget_bias)
        self.peepholes = nn.Parameter(torch.zeros(3, width))  # shut: it starts as the LSTM without them

    def extras(self) -> tuple[Tensor, ...]:
        """The peepholes."""
        return (self.peepholes,)

    def advance(self, projected: Tensor, state: CellState, products: Products = DIRECT) -> CellState:
        """The state one step later; projected (N, 4D)."""
        hidden, memory = state
        write, forget, candidate, output = self._add_hidden(projected, hidden, products).chunk(4, -1)
        see_write, see_forget, see_output = self.peepholes.unbind()
        write, forget = torch.sigmoid(write + see_write * memory), torch.sigmoid(forget + see_forget * memory)
        memory = forget * memory + write * torch.tanh(candidate)
        output = torch.sigmoid(output + see_output * memory)
        return output * torch.tanh(memory), memory


class CoupledLSTMCell(Cell):
    """c = f⊙c' + (1−f)⊙ĉ, h = o⊙tanh(c) (FIELD B4); state (h, c), rows f, o, ĉ."""

    blocks, parts = 3, 2
    walk = CoupledWalk

    def __init__(self, config: CoupledLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.start)
        nn.init.constant_(self.bias.data[:width], config.forget_bias)

    def advance(self, projected: Tensor, state: CellState, products: Products = DIRECT) -> CellState:
        """The state one step later; projected (N, 3D)."""
        forget, output, candidate = self._add_hidden(projected, state[0], products).chunk(3, -1)
        forget, output, candidate = torch.sigmoid(forget), torch.sigmoid(output), torch.tanh(candidate)
        memory = candidate + forget * (state[1] - candidate)
        return output * torch.tanh(memory), memory


class NormalisedLSTMCell(Cell):
    """Gates from norm(W_x x) + norm(W_h h') + b, h = o⊙tanh(norm(c)): Ba et al. 2016, equations 20–22.

    State (h, c), rows i, f, ĉ, o. The first two norms have no shift of their own, for b is one.
    """

    blocks, parts = 4, 2
    walk = NormalisedWalk

    def __init__(self, config: NormalisedLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.start)
        nn.init.constant_(self.bias.data[width : 2 * width], config.forget_bias)
        self.input_norm = nn.LayerNorm(4 * width, bias=False)
        self.hidden_norm = nn.LayerNorm(4 * width, bias=False)
        self.memory_norm = nn.LayerNorm(width)

    def project(self, x: Tensor) -> Tensor:
        """What the input adds to every block, normalised: (…, I) → (…, 4D)."""
        return self.settle(F.linear(x, self.input_weight))

    def multiply(self, x: Tensor, products: Products = DIRECT) -> Tensor:
        """See Cell: the norm comes before the bias."""
        return products.linear(x, self.input_weight[:, : x.shape[-1]])

    def settle(self, product: Tensor) -> Tensor:
        """See Cell."""
        normed: Tensor = self.input_norm(product)
        return normed + self.bias

    def extras(self) -> tuple[Tensor, ...]:
        """The gain of W h', and gain and shift of the memory."""
        return self.hidden_norm.weight, self.memory_norm.weight, self.memory_norm.bias

    def advance(self, projected: Tensor, state: CellState, products: Products = DIRECT) -> CellState:
        """The state one step later; projected (N, 4D)."""
        blocks = projected + self.hidden_norm(products.linear(state[0], self.hidden_weight))
        write, forget, candidate, output = blocks.chunk(4, -1)
        memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(write) * torch.tanh(candidate)
        return torch.sigmoid(output) * torch.tanh(self.memory_norm(memory)), memory


class GRUCell(Cell):
    """h = u⊙h' + (1−u)⊙ĥ (FIELD B5); rows r, u, ĥ.

    ĥ = tanh(W x + r⊙(U h') + b) with the reset after the product, tanh(W x + U (r⊙h') + b) with it before.
    """

    blocks, parts = 3, 1

    def __init__(self, config: GRUConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.start)
        self.before = config.reset == "before"
        self.walk = GRUBeforeWalk if self.before else GRUWalk
        self.fused = not self.before and config.activation == "tanh"
        self.by_torch = "gru" if self.fused else ""
        self.activation, self.bend = ACTIVATIONS[config.activation], config.activation

    def advance(self, projected: Tensor, state: CellState, products: Products = DIRECT) -> CellState:
        """The state one step later; projected (N, 3D)."""
        (hidden,), sizes = state, [2 * self.width, self.width]
        gates, candidate = torch.split(projected, sizes, -1)
        if self.before:
            gate_weight, candidate_weight = torch.split(self.hidden_weight, sizes)
            reset, update = torch.sigmoid(gates + products.linear(hidden, gate_weight)).chunk(2, -1)
            candidate = candidate + products.linear(reset * hidden, candidate_weight)
        else:
            to_gates, to_candidate = torch.split(products.linear(hidden, self.hidden_weight), sizes, -1)
            reset, update = torch.sigmoid(gates + to_gates).chunk(2, -1)
            candidate = candidate + reset * to_candidate
        candidate = self.activation(candidate)
        return (candidate + update * (hidden - candidate),)

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """One step, x (N, I), with torch's fused cell where there is one."""
        if not self.fused:
            return super().forward(x, state)
        hidden = torch.gru_cell(x, state[0], *self._weights())
        return hidden, (hidden,)

    def torchs(self, x: Tensor, state: CellState, weights: list[Tensor]) -> tuple[Tensor, CellState]:
        """See Cell."""
        start = state[0][None].contiguous()
        out, hidden = torch.gru(x, start, weights, True, 1, 0.0, self.training, False, True)
        return out, (hidden[0],)


CELLS: dict[type, Callable[..., Cell]] = {
    PlainConfig: PlainCell,
    LSTMConfig: LSTMCell,
    PeepholeLSTMConfig: PeepholeLSTMCell,
    CoupledLSTMConfig: CoupledLSTMCell,
    NormalisedLSTMConfig: NormalisedLSTMCell,
    GRUConfig: GRUCell,
}


def build_cell(config: CellConfig, inputs: int, width: int) -> Cell:
    """The cell a configuration asks for."""
    return CELLS[type(config)](config, inputs, width)
