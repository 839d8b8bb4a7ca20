"""Recurrent layers over padded rows: `layer(x, mask) -> (outputs, last)`, to be stacked.

Padding is at the end of a row. A forward cell reads it after all real tokens, and a backward cell reads the real tokens
of every row reversed. So padding never reaches a real position, and rows need no packing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.layers.cells import Cell, CellConfig, CellState, build_cell


def reversed_rows(x: Tensor, lengths: Tensor) -> Tensor:
    """The real tokens of every row reversed, padding left in place: (B, S, D)."""
    positions = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
    lengths = lengths[:, None]
    index = torch.where(positions < lengths, lengths - 1 - positions, positions)
    return x.gather(1, index[:, :, None].expand_as(x))


def last_output(x: Tensor, lengths: Tensor) -> Tensor:
    """The vector at the last real position of every row, zeros for empty rows: (B, S, D) → (B, D)."""
    index = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.shape[2])
    return x.gather(1, index)[:, 0].masked_fill((lengths == 0)[:, None], 0.0)


def sequence_to_last(cell: Cell, x: Tensor, lengths: Tensor) -> tuple[Tensor, CellState]:
    """`cell.sequence` from the start, and the whole state of every row after its last real token.

    torch's kernels return the whole state after the last column only, so this runs our own recurrence.
    """
    states = cell.all_states(x, cell.start(x.shape[0]))
    return states[0], tuple(last_output(part, lengths) for part in states)


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
        lengths = mask.sum(1)
        x = reversed_rows(x, lengths) if self.backward_reading else x
        if self.whole_state:
            out, last = sequence_to_last(self.cell, x, lengths)
        else:
            out, _ = self.cell.sequence(x, self.cell.start(x.shape[0]))
            last = (last_output(out, lengths),)
        return (reversed_rows(out, lengths) if self.backward_reading else out), last


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
        lengths = mask.sum(1)
        start = self.forward_cell.start(x.shape[0])
        ahead, _ = self.forward_cell.sequence(x, start)
        back, _ = self.backward_cell.sequence(reversed_rows(x, lengths), start)
        final: Tensor = self.merge(last_output(ahead, lengths), last_output(back, lengths))
        out: Tensor = self.merge(ahead, reversed_rows(back, lengths))
        return out, (final,)
