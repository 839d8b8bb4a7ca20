"""Recurrent layers over padded rows: `layer(x, mask) -> (outputs, last)`, to be stacked."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.models.layers import recurrence
from dragoman.models.layers.cells import CellConfig, build_cell
from dragoman.models.layers.recurrence import CellState


class VariationalDropout(nn.Module):
    """Dropout with one mask per row for all steps (Gal and Ghahramani 2016)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        keep = x.new_empty(x.shape[0], 1, x.shape[2]).bernoulli_(1 - self.rate)
        return x * (keep / (1 - self.rate))


class RecurrentLayer(nn.Module):
    """norm(read(dropout(x))), plus x in a residual layer; subclasses define `read`."""

    def __init__(self, width: int, dropout: nn.Module | None, residual: bool, norm: bool) -> None:
        super().__init__()
        self.width = width
        self.dropout = dropout or nn.Identity()
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.residual = residual

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, CellState]:
        """(B, S, I) → outputs (B, S, D) and the state after the last real token, the output (B, D) first."""
        raise NotImplementedError

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, CellState]:
        """(B, S, I) → outputs (B, S, D), zero on padding, and the last output (B, D), or the whole state."""
        out, last = self.read(self.dropout(x), mask)
        out = self.norm(out)
        if self.residual:
            out = x + out
        return out.masked_fill(~mask[:, :, None], 0.0), last


class Unidirectional(RecurrentLayer):
    """One cell that reads forward or backward."""

    def __init__(
        self,
        cell: CellConfig,
        inputs: int,
        width: int,
        backward: bool = False,
        dropout: nn.Module | None = None,
        residual: bool = False,
        norm: bool = False,
    ) -> None:
        super().__init__(width, dropout, residual, norm)
        self.cell = build_cell(cell, inputs, width)
        self.backward_reading = backward
        self.whole_state = False  # whether `read` returns the whole last state, not only the output

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, CellState]:
        """(B, S, I) → outputs (B, S, D) in the order of x, and the last output (B, D) or the whole state."""
        return recurrence.read(self.cell, x, mask, backward=self.backward_reading, whole_state=self.whole_state)


class Merge(nn.Module):
    """Merges two directions: concatenated, each with half the width; or with the full width their mean or W [a; b]."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind = kind
        self.each = width // 2 if kind == "concatenate" else width
        self.linear = nn.Linear(2 * width, width) if kind == "projection" else nn.Identity()

    def forward(self, ahead: Tensor, back: Tensor) -> Tensor:
        """Twice (…, each) → (…, D)."""
        return (ahead + back) / 2 if self.kind == "mean" else self.linear(torch.cat([ahead, back], -1))


class Bidirectional(RecurrentLayer):
    """A forward and a backward cell with merged outputs (Schuster and Paliwal 1997)."""

    def __init__(
        self,
        cell: CellConfig,
        inputs: int,
        width: int,
        merge: str = "concatenate",
        dropout: nn.Module | None = None,
        residual: bool = False,
        norm: bool = False,
    ) -> None:
        super().__init__(width, dropout, residual, norm)
        self.merge = Merge(merge, width)
        self.forward_cell = build_cell(cell, inputs, self.merge.each)
        self.backward_cell = build_cell(cell, inputs, self.merge.each)

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, CellState]:
        """(B, S, I) → outputs (B, S, D) and the merged last outputs of both directions (B, D)."""
        ahead, (ahead_last,) = recurrence.read(self.forward_cell, x, mask)
        back, (back_last,) = recurrence.read(self.backward_cell, x, mask, backward=True)
        return self.merge(ahead, back), (self.merge(ahead_last, back_last),)
