"""Recurrent cells (FIELD B1–B5, B9), one contract: `cell(x, state) -> (y, state)`.

A state is a tuple of (N, D) tensors whose first is the output. A step is `advance(project(x), state)`: what the input
adds to the gates does not depend on the state, so `sequence` projects all steps in one product and only then walks
through time. Where torch has a fused kernel for a whole sequence, `sequence` uses it; tests hold both against each
other. A cell holds one bias per gate (torch's own layers carry two that always add up).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dragoman.settings import setting

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
STARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "orthogonal": nn.init.orthogonal_,
    "identity": nn.init.eye_,
    "uniform": lambda block: nn.init.uniform_(block, -(block.shape[1] ** -0.5), block.shape[1] ** -0.5),
}


class Cell(nn.Module):
    """What all cells share: `blocks` of weight rows, one per gate or candidate, and the walk through time."""

    blocks: int
    parts: int  # tensors in the state

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

    def advance(self, projected: Tensor, state: CellState) -> CellState:
        """The state one step later; projected (N, blocks·D)."""
        raise NotImplementedError

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """One step: x (N, I) → output (N, D)."""
        state = self.advance(self.project(x), state)
        return state[0], state

    def sequence(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """Every step of x (N, T, I) → outputs (N, T, D) and the state after the last."""
        return self.walk(x, state)

    def walk(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """`sequence` step by step, for cells and settings without a fused kernel."""
        outputs = []
        for projected in self.project(x.transpose(0, 1)).unbind(0):  # (N, blocks·D), contiguous: time comes first
            state = self.advance(projected, state)
            outputs.append(state[0])
        return torch.stack(outputs, 1), state

    def _add_hidden(self, projected: Tensor, hidden: Tensor) -> Tensor:
        return torch.addmm(projected, hidden, self.hidden_weight.t())

    def _weights(self) -> list[Tensor]:
        """In the order torch's kernels want them, with the second bias that we do not have."""
        return [self.input_weight, self.hidden_weight, self.bias, torch.zeros_like(self.bias)]


class PlainCell(Cell):
    """h = tanh(W_hh h' + W_xh x + b) (FIELD B1)."""

    blocks, parts = 1, 1

    def __init__(self, config: PlainConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.start)
        self.activation = ACTIVATIONS[config.activation]
        self.fused = {"tanh": torch.rnn_tanh, "relu": torch.rnn_relu}[config.activation]

    def advance(self, projected: Tensor, state: CellState) -> CellState:
        """The state one step later; projected (N, D)."""
        return (self.activation(self._add_hidden(projected, state[0])),)

    def sequence(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """Every step of x (N, T, I) with torch's fused kernel."""
        start = state[0][None].contiguous()
        out, hidden = self.fused(x, start, self._weights(), True, 1, 0.0, self.training, False, True)
        return out, (hidden[0],)


class LSTMCell(Cell):
    """c = f⊙c' + i⊙ĉ, h = o⊙tanh(c) (FIELD B2); state (h, c), rows i, f, ĉ, o."""

    blocks, parts = 4, 2

    def __init__(self, config: LSTMConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.start)
        nn.init.constant_(self.bias.data[width : 2 * width], config.forget_bias)  # Jozefowicz et al. 2015

    def advance(self, projected: Tensor, state: CellState) -> CellState:
        """The state one step later; projected (N, 4D)."""
        write, forget, candidate, output = self._add_hidden(projected, state[0]).chunk(4, -1)
        memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(write) * torch.tanh(candidate)
        return torch.sigmoid(output) * torch.tanh(memory), memory

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """One step, x (N, I), with torch's fused cell."""
        hidden, memory = torch.lstm_cell(x, list(state), *self._weights())
        return hidden, (hidden, memory)

    def sequence(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """Every step of x (N, T, I) with torch's fused kernel."""
        start = [part[None].contiguous() for part in state]
        out, hidden, memory = torch.lstm(x, start, self._weights(), True, 1, 0.0, self.training, False, True)
        return out, (hidden[0], memory[0])

    def packed(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, CellState]:
        """`sequence` from the start over rows of different lengths, with each row's state after its own last step."""
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        start = [part[None].contiguous() for part in self.start(x.shape[0])]
        out, hidden, memory = torch.lstm(
            packed.data, packed.batch_sizes, start, self._weights(), True, 1, 0.0, self.training, False
        )
        outputs, _ = pad_packed_sequence(packed._replace(data=out), batch_first=True, total_length=x.shape[1])
        return outputs, (hidden[0][packed.unsorted_indices], memory[0][packed.unsorted_indices])


class PeepholeLSTMCell(Cell):
    """f and i also read p⊙c', o reads p⊙c (FIELD B3); state (h, c), rows i, f, ĉ, o, peepholes i, f, o."""

    blocks, parts = 4, 2

    def __init__(self, config: PeepholeLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.start)
        nn.init.constant_(self.bias.data[width : 2 * width], config.forget_bias)
        self.peepholes = nn.Parameter(torch.zeros(3, width))  # shut: it starts as the LSTM without them

    def advance(self, projected: Tensor, state: CellState) -> CellState:
        """The state one step later; projected (N, 4D)."""
        hidden, memory = state
        blocks = self._add_hidden(projected, hidden).view(-1, 4, self.width)  # (N, 4, D)
        gates = torch.sigmoid(blocks[:, :2] + self.peepholes[:2] * memory[:, None])  # (N, 2, D)
        memory = gates[:, 1] * memory + gates[:, 0] * torch.tanh(blocks[:, 2])
        output = torch.sigmoid(blocks[:, 3] + self.peepholes[2] * memory)
        return output * torch.tanh(memory), memory


class CoupledLSTMCell(Cell):
    """c = f⊙c' + (1−f)⊙ĉ, h = o⊙tanh(c) (FIELD B4); state (h, c), rows f, o, ĉ."""

    blocks, parts = 3, 2

    def __init__(self, config: CoupledLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.start)
        nn.init.constant_(self.bias.data[:width], config.forget_bias)

    def advance(self, projected: Tensor, state: CellState) -> CellState:
        """The state one step later; projected (N, 3D)."""
        blocks = self._add_hidden(projected, state[0])
        forget, output = torch.sigmoid(blocks[:, : 2 * self.width]).chunk(2, -1)
        candidate = torch.tanh(blocks[:, 2 * self.width :])
        memory = candidate + forget * (state[1] - candidate)
        return output * torch.tanh(memory), memory


class NormalisedLSTMCell(Cell):
    """Gates from norm(W_x x) + norm(W_h h') + b, h = o⊙tanh(norm(c)): Ba et al. 2016, equations 20–22.

    State (h, c), rows i, f, ĉ, o. The first two norms have no shift of their own, for b is one.
    """

    blocks, parts = 4, 2

    def __init__(self, config: NormalisedLSTMConfig, inputs: int, width: int) -> None:
        super().__init__(inputs, width, config.start)
        nn.init.constant_(self.bias.data[width : 2 * width], config.forget_bias)
        self.input_norm = nn.LayerNorm(4 * width, bias=False)
        self.hidden_norm = nn.LayerNorm(4 * width, bias=False)
        self.memory_norm = nn.LayerNorm(width)

    def project(self, x: Tensor) -> Tensor:
        """What the input adds to every block, normalised: (…, I) → (…, 4D)."""
        normed: Tensor = self.input_norm(F.linear(x, self.input_weight))
        return normed + self.bias

    def advance(self, projected: Tensor, state: CellState) -> CellState:
        """The state one step later; projected (N, 4D)."""
        blocks = projected + self.hidden_norm(F.linear(state[0], self.hidden_weight))
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
        self.fused = not self.before and config.activation == "tanh"
        self.activation = ACTIVATIONS[config.activation]

    def advance(self, projected: Tensor, state: CellState) -> CellState:
        """The state one step later; projected (N, 3D)."""
        (hidden,), both = state, 2 * self.width
        gates, candidate = projected[:, :both], projected[:, both:]
        if self.before:
            gates = torch.addmm(gates, hidden, self.hidden_weight[:both].t())
            reset, update = torch.sigmoid(gates).chunk(2, -1)
            candidate = torch.addmm(candidate, reset * hidden, self.hidden_weight[both:].t())
        else:
            turned = F.linear(hidden, self.hidden_weight)  # (N, 3D)
            reset, update = torch.sigmoid(gates + turned[:, :both]).chunk(2, -1)
            candidate = candidate + reset * turned[:, both:]
        candidate = self.activation(candidate)
        return (candidate + update * (hidden - candidate),)

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """One step, x (N, I), with torch's fused cell where there is one."""
        if not self.fused:
            return super().forward(x, state)
        hidden = torch.gru_cell(x, state[0], *self._weights())
        return hidden, (hidden,)

    def sequence(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """Every step of x (N, T, I), with torch's fused kernel where there is one."""
        if not self.fused:
            return self.walk(x, state)
        start = state[0][None].contiguous()
        out, hidden = torch.gru(x, start, self._weights(), True, 1, 0.0, self.training, False, True)
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
