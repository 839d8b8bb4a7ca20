"""Recurrent cells, one contract `cell(x, state) -> (y, state)`, and running them over a sequence.

A cell holds one bias per gate (torch's own layers carry two that always add up). Where torch has a fused kernel
for a whole sequence, `sequence` uses it; a test holds both against each other.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

# cuDNN would like all weights of a layer in one block; they are small, and gathering them costs nothing that shows.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")

CellState = tuple[Tensor, ...]  # each (N, D); the first is the output


class Cell(nn.Module):
    """Weights shared by the gated cells: `gates` stacked blocks of rows, as torch's own layers order them."""

    gates: int
    parts: int  # tensors in the state

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.inputs, self.width = inputs, width
        self.input_weight = nn.Parameter(torch.empty(self.gates * width, inputs))
        self.hidden_weight = nn.Parameter(torch.empty(self.gates * width, width))
        self.bias = nn.Parameter(torch.zeros(self.gates * width))
        for block in self.input_weight.chunk(self.gates):
            nn.init.xavier_uniform_(block)
        for block in self.hidden_weight.chunk(self.gates):
            nn.init.orthogonal_(block)

    def start(self, rows: int) -> CellState:
        """The state before anything was read."""
        return tuple(self.bias.new_zeros(rows, self.width) for _ in range(self.parts))

    def _weights(self) -> list[Tensor]:
        return [self.input_weight, self.hidden_weight, self.bias, torch.zeros_like(self.bias)]


class LSTMCell(Cell):
    """Long short-term memory (FIELD B2); state (h, c), gate rows i, f, ĉ, o."""

    gates, parts = 4, 2

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__(inputs, width)
        # An open forget gate at the start lets gradients reach far back (Jozefowicz et al. 2015).
        nn.init.ones_(self.bias.data[width : 2 * width])

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """One step: x (N, I)."""
        hidden, memory = torch.lstm_cell(x, list(state), *self._weights())
        return hidden, (hidden, memory)

    def sequence(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """Every step of x (N, T, I) with torch's fused kernel."""
        start = [part[None].contiguous() for part in state]
        out, hidden, memory = torch.lstm(x, start, self._weights(), True, 1, 0.0, self.training, False, True)
        return out, (hidden[0], memory[0])


class GRUCell(Cell):
    """Gated recurrent unit, reset after the matrix product (FIELD B5); gate rows r, u, ĥ."""

    gates, parts = 3, 1

    def forward(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """One step: x (N, I)."""
        hidden = torch.gru_cell(x, state[0], *self._weights())
        return hidden, (hidden,)

    def sequence(self, x: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """Every step of x (N, T, I) with torch's fused kernel."""
        start = state[0][None].contiguous()
        out, hidden = torch.gru(x, start, self._weights(), True, 1, 0.0, self.training, False, True)
        return out, (hidden[0],)


CELLS: dict[str, type[LSTMCell] | type[GRUCell]] = {"lstm": LSTMCell, "gru": GRUCell}


def reversed_rows(x: Tensor, lengths: Tensor) -> Tensor:
    """Each row's real part back to front, its padding left in place: (B, S, D)."""
    places = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
    lengths = lengths[:, None]
    mirrored = torch.where(places < lengths, lengths - 1 - places, places)
    return x.gather(1, mirrored[:, :, None].expand_as(x))


class Bidirectional(nn.Module):
    """One cell reading forward and one backward, outputs side by side (FIELD B7).

    Padding stands at the end, so the forward cell meets it last and the backward cell reads a mirrored row:
    neither lets it touch a real position (FIELD B12), and no packing is needed.
    """

    def __init__(self, cell: type[LSTMCell] | type[GRUCell], inputs: int, width: int) -> None:
        super().__init__()
        self.forward_cell = cell(inputs, width)
        self.backward_cell = cell(inputs, width)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, I) → outputs (B, S, 2D), zero on padding, and the state after the last real token (B, 2D)."""
        lengths = mask.sum(1)
        start = self.forward_cell.start(x.shape[0])
        ahead, _ = self.forward_cell.sequence(x, start)
        back, _ = self.backward_cell.sequence(reversed_rows(x, lengths), start)
        last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, ahead.shape[2])
        final = torch.cat([ahead.gather(1, last), back.gather(1, last)], -1)[:, 0]
        out = torch.cat([ahead, reversed_rows(back, lengths)], -1)
        return out * mask[:, :, None].to(out.dtype), final
