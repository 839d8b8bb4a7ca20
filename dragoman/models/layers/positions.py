"""Position encodings: absolute ones, which are added to the embeddings, and the tables of all kinds.

`relative_positions` has those that enter inside self-attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dragoman.base import DataError
from dragoman.models.kernels.support import is_exporting
from dragoman.models.layers.config import (
    LearnedConfig,
    Merge,
    NoPositionsConfig,
    PositionsConfig,
    RelativeBiasConfig,
    RelativeConfig,
    RelativeSinusoidalConfig,
    RotaryConfig,
    SinusoidalConfig,
)
from dragoman.models.layers.relative_positions import (
    Relative,
    RelativeBias,
    RelativePositions,
    RelativeSinusoidal,
    Rotary,
)


class NoAbsolutePositions(nn.Module):
    """Adds nothing: for no positions, and for relative ones."""

    max_positions = None

    def __init__(self, config: PositionsConfig, width: int) -> None:
        super().__init__()

    def reserve(self, length: int) -> None:
        """Any length fits."""

    def forward(self, x: Tensor, start: Tensor | int) -> Tensor:
        return x


def sinusoids(length: int, width: int, layout: str = "interleaved", dtype: torch.dtype | None = None) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), cosine for odd columns (Vaswani et al. 2017); (length, D)."""
    if layout == "fairseq":
        steps, slope, first = torch.arange(width // 2, dtype=torch.float64), 1 / max(1, width // 2 - 1), 2
    else:
        steps, slope, first = torch.arange(0, width, 2, dtype=torch.float64), 1 / width, 0
    rates = torch.exp(steps * (-math.log(10000.0) * slope))
    angles = torch.arange(first, first + length, dtype=torch.float64)[:, None] * rates  # (length, ⌈D/2⌉)
    table = torch.empty(length, width, dtype=torch.float64)
    if layout == "interleaved":
        table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()[:, : width // 2]
    else:
        half = angles.shape[1]
        table[:, :half], table[:, half : 2 * half] = angles.sin(), angles.cos()[:, : width - half]
        table[:, 2 * half :] = 0.0  # fairseq's last column of an odd width
    return table.to(dtype or torch.get_default_dtype())


_TABLES: dict[tuple[int, str, torch.device, torch.dtype], list[Tensor]] = {}
_GROWING = Lock()


def sinusoid_table(length: int, width: int, layout: str, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A shared table of sinusoids (L, D) with at least `length` rows.

    Tables are constants, shared by all models of the process. A longer table is added beside the shorter ones, and none
    is ever freed or written again: a captured CUDA graph keeps the address of the table that it saw, and another thread
    may be reading it. Lengths double, so that all tables together take less than twice the memory of the longest.
    """
    tables = _TABLES.setdefault((width, layout, device, dtype), [])
    if not tables or tables[-1].shape[0] < length:
        with _GROWING:
            if not tables or tables[-1].shape[0] < length:
                rows = max(256, 1 << (length - 1).bit_length())
                tables.append(sinusoids(rows, width, layout, dtype).to(device))
    return tables[-1]


class MergePositions(nn.Module):
    """x + p, (x + p) / 2, W [x; p] + b, or x + p / √D."""

    def __init__(self, merge: Merge, width: int) -> None:
        super().__init__()
        self.merge = merge
        self.projection = nn.Linear(2 * width, width) if merge == "concatenate" else None

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, D), positions (T, D) → (B, T, D)."""
        if self.projection is not None:
            return self.projection(torch.cat([x, positions.to(x.dtype).expand_as(x)], -1))
        if self.merge == "downscaled":
            return x + positions * x.shape[-1] ** -0.5
        return x + positions if self.merge == "sum" else (x + positions) / 2


class AbsolutePositions(nn.Module):
    """Positions that a stack adds to its embeddings; the analysis asks for what they declare here, not for a class."""

    has_positions: ClassVar[bool] = True
    adds_vectors: ClassVar[bool] = True  # called with embeddings (B, T, D), it returns them with their positions

    @contextmanager
    def without_positions(self) -> Iterator[None]:
        """Inside the block a call returns the embeddings as they are."""
        hook = self.register_forward_hook(lambda module, inputs, output: inputs[0])
        try:
            yield
        finally:
            hook.remove()


class Sinusoidal(AbsolutePositions):
    """Adds sinusoids (Vaswani et al. 2017, section 3.5); any number of positions."""

    max_positions = None  # any number of positions

    def __init__(self, config: SinusoidalConfig, width: int) -> None:
        super().__init__()
        self.width, self.layout = width, config.layout
        self.merge = MergePositions(config.merge, width)
        self._reserved = 0
        self._own: Tensor | None = None

    def reserve(self, length: int) -> None:
        """Make sure that calls with a tensor as `start` can reach `length` positions."""
        with _GROWING:
            self._reserved = max(self._reserved, length)

    def keep_table(self, length: int) -> None:
        """Keep a table of so many positions, which an exported graph stores as it is instead of computing it."""
        self.reserve(length)
        self._own = sinusoids(length, self.width, self.layout)

    def forward(self, x: Tensor, start: Tensor | int) -> Tensor:
        """x (B, T, D) whose first token has the position `start`."""
        if is_exporting():  # a graph has its own table: the shared one must not hold its placeholders
            assert self._own is not None, "an exporter calls `keep_table`"
            return self.merge(x, rows_from(self._own, start, x.shape[1]))
        length = self._reserved if isinstance(start, Tensor) else start + x.shape[1]
        table = sinusoid_table(length, self.width, self.layout, x.device, x.dtype)
        return self.merge(x, rows_from(table, start, x.shape[1]))


class Learned(AbsolutePositions):
    """Adds one learned vector per position (Gehring et al. 2017)."""

    def __init__(self, config: LearnedConfig, width: int) -> None:
        super().__init__()
        self.max_positions = config.max_positions
        self.table = nn.Parameter(torch.randn(config.max_positions, width) * width**-0.5)
        self.merge = MergePositions(config.merge, width)

    def reserve(self, length: int) -> None:
        """Raise an error for sequences longer than the learned positions."""
        if length > self.table.shape[0]:
            raise DataError(
                f"a sequence of {length} tokens, but the model has learned {self.table.shape[0]} positions "
                "(model's positions.max_positions)"
            )

    def forward(self, x: Tensor, start: Tensor | int) -> Tensor:
        """x (B, T, D) whose first token has the position `start`."""
        if not isinstance(start, Tensor):
            self.reserve(start + x.shape[1])
        return self.merge(x, rows_from(self.table, start, x.shape[1]))


def rows_from(table: Tensor, start: Tensor | int, length: int) -> Tensor:
    if isinstance(start, Tensor):
        return table[start + torch.arange(length, device=table.device)]
    return table[start : start + length]


ABSOLUTE_POSITIONS: dict[type, Any] = {
    SinusoidalConfig: Sinusoidal,
    LearnedConfig: Learned,
    RotaryConfig: NoAbsolutePositions,
    RelativeConfig: NoAbsolutePositions,
    RelativeSinusoidalConfig: NoAbsolutePositions,
    RelativeBiasConfig: NoAbsolutePositions,
    NoPositionsConfig: NoAbsolutePositions,
}
RELATIVE_POSITIONS: dict[type, Any] = {
    RotaryConfig: Rotary,
    RelativeConfig: Relative,
    RelativeSinusoidalConfig: RelativeSinusoidal,
    RelativeBiasConfig: RelativeBias,
}


def build_absolute_positions(config: PositionsConfig, width: int) -> Sinusoidal | Learned | NoAbsolutePositions:
    """The positions that the input of a stack adds to its embeddings."""
    return ABSOLUTE_POSITIONS[type(config)](config, width)


def build_relative_positions(
    config: PositionsConfig, layers: int, heads: int, depth: int, *, causal: bool
) -> list[RelativePositions]:
    """The relative positions of every layer; some kinds share one module over the whole stack."""
    if type(config) not in RELATIVE_POSITIONS:
        return [RelativePositions() for _ in range(layers)]
    kind = RELATIVE_POSITIONS[type(config)]
    modules = [kind(config, heads, depth, causal) for _ in range(1 if kind.shared else layers)]
    return modules * layers if kind.shared else modules
