"""Recurrent layers over padded rows (FIELD B6–B8, B12): `layer(x, mask) -> (outputs, last)`, made to be stacked.

Padding stands at the end of a row. A forward cell therefore meets it after everything real, and a backward cell reads
each row's real part mirrored: padding touches no real position, and no packing is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.layers.cells import Cell, CellConfig, CellState, build_cell


def reversed_rows(x: Tensor, lengths: Tensor) -> Tensor:
    """Each row's real part back to front, its padding left in place: (B, S, D)."""
    places = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
    lengths = lengths[:, None]
    mirrored = torch.where(places < lengths, lengths - 1 - places, places)
    return x.gather(1, mirrored[:, :, None].expand_as(x))


def last_real(x: Tensor, lengths: Tensor) -> Tensor:
    """The vector at each row's last real place, zeros where nothing is real: (B, S, D) → (B, D)."""
    places = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.shape[2])
    return x.gather(1, places)[:, 0].masked_fill((lengths == 0)[:, None], 0.0)


def sequence_to_last(cell: Cell, x: Tensor, lengths: Tensor) -> tuple[Tensor, CellState]:
    """`cell.sequence` from the start, and each row's whole state after its last real token.

    Torch's kernels give the whole state after the last column only, so this is for our own walk alone.
    """
    states = cell.all_states(x, cell.start(x.shape[0]))
    return states[0], tuple(last_real(part, lengths) for part in states)


class VariationalDropout(nn.Module):
    """Dropout with one mask a row for all its steps (Gal and Ghahramani 2016), on what a layer reads."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, D)."""
        if not self.training or self.rate == 0.0:
            return x
        keep = x.new_empty(x.shape[0], 1, x.shape[2]).bernoulli_(1 - self.rate)
        return x * (keep / (1 - self.rate))


class RecurrentLayer(nn.Module):
    """norm(read(dropout(x))), and x itself added in a residual layer (FIELD B8); both kinds below say how they read."""

    def __init__(self, width: int, dropout: nn.Module | None, residual: bool, norm: bool) -> None:
        super().__init__()
        self.width = width
        self.dropout = dropout or nn.Identity()
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.residual = residual

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, CellState]:
        """(B, S, I) → outputs (B, S, D) and what is known after the last real token read, the output (B, D) first."""
        raise NotImplementedError

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, CellState]:
        """(B, S, I) → outputs (B, S, D), zero on padding, and the cell's own last output (B, D), or whole state."""
        out, last = self.read(self.dropout(x), mask)
        out = self.norm(out)
        if self.residual:
            out = x + out
        return out.masked_fill(~mask[:, :, None], 0.0), last


class Unidirectional(RecurrentLayer):
    """One cell, reading forward or backward."""

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
        self.mirrored = backward
        self.whole_state = False  # whether somebody needs more of the last state than the output

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, CellState]:
        """(B, S, I) → outputs (B, S, D) in the order of x and the last one the cell gave (B, D), or its state."""
        lengths = mask.sum(1)
        x = reversed_rows(x, lengths) if self.mirrored else x
        if self.whole_state:
            out, last = sequence_to_last(self.cell, x, lengths)
        else:
            out, _ = self.cell.sequence(x, self.cell.start(x.shape[0]))
            last = (last_real(out, lengths),)
        return (reversed_rows(out, lengths) if self.mirrored else out), last


class Concatenate(nn.Module):
    """Both directions side by side, each with half the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.each = width // 2

    def forward(self, ahead: Tensor, back: Tensor) -> Tensor:
        """Twice (…, D/2) → (…, D)."""
        return torch.cat([ahead, back], -1)


class Mean(nn.Module):
    """The mean of both directions, each with the full width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.each = width

    def forward(self, ahead: Tensor, back: Tensor) -> Tensor:
        """Twice (…, D) → (…, D)."""
        return (ahead + back) / 2


class Projection(nn.Module):
    """A linear map of both directions, each with the full width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.each = width
        self.linear = nn.Linear(2 * width, width)

    def forward(self, ahead: Tensor, back: Tensor) -> Tensor:
        """Twice (…, D) → (…, D)."""
        out: Tensor = self.linear(torch.cat([ahead, back], -1))
        return out


MERGES: dict[str, type[Concatenate] | type[Mean] | type[Projection]] = {
    "concatenate": Concatenate,
    "mean": Mean,
    "projection": Projection,
}


class Bidirectional(RecurrentLayer):
    """One cell reading forward and one backward, their outputs merged (FIELD B7)."""

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
        self.merge = MERGES[merge](width)
        self.forward_cell = build_cell(cell, inputs, self.merge.each)
        self.backward_cell = build_cell(cell, inputs, self.merge.each)

    def read(self, x: Tensor, mask: Tensor) -> tuple[Tensor, CellState]:
        """(B, S, I) → outputs (B, S, D) and both directions' last ones merged (B, D)."""
        lengths = mask.sum(1)
        start = self.forward_cell.start(x.shape[0])
        ahead, _ = self.forward_cell.sequence(x, start)
        back, _ = self.backward_cell.sequence(reversed_rows(x, lengths), start)
        final: Tensor = self.merge(last_real(ahead, lengths), last_real(back, lengths))
        out: Tensor = self.merge(ahead, reversed_rows(back, lengths))
        return out, (final,)
