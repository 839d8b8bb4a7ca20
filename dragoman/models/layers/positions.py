"""Positions: absolute ones, which are added to the embeddings, and relative ones, which enter self-attention."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dragoman.base import DataError
from dragoman.models.kernels import fused_layers
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
from dragoman.models.layers.linear import Linear, glorot


class RelativePositions(nn.Module):
    """No relative positions."""

    shared: ClassVar[bool] = False  # whether all layers of a stack share one

    @property
    def has_positions(self) -> bool:
        return type(self).rotate is not RelativePositions.rotate or type(self).bias is not RelativePositions.bias

    @contextmanager
    def without_positions(self) -> Iterator[None]:
        """Inside the block it neither rotates nor adds a bias."""
        if "rotate" in vars(self):  # a block inside another: the outer one puts them back
            yield
            return
        for name in ("rotate", "bias"):  # an attribute of the object hides the method of its class
            setattr(self, name, partial(getattr(RelativePositions, name), self))
        try:
            yield
        finally:
            del self.rotate, self.bias

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys (N, H, T, d) at positions (T,)."""
        return x

    def bias(self, query: Tensor, distance: Tensor, scale: float) -> Tensor | None:
        """The bias of the scores, broadcastable to (N, H, T, S); distance (T, S) from query to key.

        `scale` is the factor of the products with the query.
        """
        return None


class Rotary(RelativePositions):
    """RoPE (Su et al. 2021, eq. 34), with the halves of a head as pairs, as in Llama.

    The paper pairs neighbours, which is the same up to a permutation of the rows of the query and key matrices.
    """

    def __init__(self, config: RotaryConfig, heads: int, depth: int, causal: bool) -> None:
        super().__init__()
        self.base = config.base

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (N, H, T, d) with the pair (i, i + d/2) rotated by position · base^(−2i/d)."""
        rotated = fused_layers.rotate(x, positions, self.base)
        if rotated is not None:
            return rotated
        angles = self.angles(positions, x.shape[-1], torch.promote_types(x.dtype, torch.float32))
        cosine, sine = angles.cos(), angles.sin()
        left, right = x.chunk(2, -1)
        return torch.cat([left * cosine - right * sine, right * cosine + left * sine], -1).to(x.dtype)

    def angles(self, positions: Tensor, depth: int, precision: torch.dtype = torch.float64) -> Tensor:
        """By which each pair is rotated: (T, d/2)."""
        rates = self.base ** (-torch.arange(0, depth, 2, device=positions.device, dtype=precision) / depth)
        return positions.to(precision)[:, None] * rates


class Relative(RelativePositions):
    """e_ij = q_i (k_j + a_{j−i})ᵀ / √d (Shaw et al. 2018, eq. 4): keys only, one table for all heads.

    Without the paper's vectors for the values (eq. 3), which add nothing according to its table 3.
    """

    def __init__(self, config: RelativeConfig, heads: int, depth: int, causal: bool) -> None:
        super().__init__()
        self.distance, self.ahead = config.distance, 0 if causal else config.distance
        self.table = nn.Parameter(torch.randn(self.distance + 1 + self.ahead, depth) * depth**-0.5)

    def bias(self, query: Tensor, distance: Tensor, scale: float) -> Tensor:
        """Every query is multiplied by every vector once; the distances then select (section 3.3)."""
        products = (query * scale) @ self.table.T  # (N, H, T, 2k+1)
        index = distance.clamp(-self.distance, self.ahead) + self.distance  # (T, S)
        return products.gather(-1, index.expand(*products.shape[:-1], -1))


class RelativeSinusoidal(RelativePositions):
    """(q_i + v)ᵀ W_r r_{i−j} / √d (Dai et al. 2019, section 3.3, terms b and d).

    Term c, uᵀ k_j, is what the bias of the query projection adds to q_iᵀ k_j, so v stands for the paper's v − u.
    """

    def __init__(self, config: RelativeSinusoidalConfig, heads: int, depth: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.depth = heads, depth
        self.project = Linear(heads * depth, heads * depth, bias=False)
        self.shift = nn.Parameter(torch.zeros(heads, 1, depth))
        glorot(self.project)

    def bias(self, query: Tensor, distance: Tensor, scale: float) -> Tensor:
        """Every query is multiplied by the vector of every distance that occurs; the distances then select."""
        span = sum(distance.shape)  # distances differ by less than this: both axes count positions one by one
        first = distance.min()
        distances = first + torch.arange(span, device=distance.device)
        vectors = signed_sinusoids(distances, self.heads * self.depth, query.dtype)
        keys = self.project(vectors).view(span, self.heads, self.depth).permute(1, 2, 0)  # (H, d, 2k+1)
        products = ((query + self.shift) * scale) @ keys  # (N, H, T, 2k+1)
        return products.gather(-1, (distance - first).expand(*products.shape[:-1], -1))


def signed_sinusoids(distances: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Sines, then cosines, of distances (n,), which may be negative: (n, width), computed in at least float32."""
    precise = torch.promote_types(dtype, torch.float32)
    rates = 10000.0 ** (-torch.arange(0, width, 2, device=distances.device, dtype=precise) / width)
    angles = distances.to(precise)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()[:, : width // 2]], -1).to(dtype)


class RelativeBias(RelativePositions):
    """The bias of T5 (Raffel et al. 2020, section 2.1): exact buckets for small distances, logarithmic ones beyond.

    Encoders use half of the buckets for each direction, decoders all of them for the past.
    """

    shared = True
    near: Tensor

    def __init__(self, config: RelativeBiasConfig, heads: int, depth: int, causal: bool) -> None:
        super().__init__()
        self.causal, self.distance = causal, config.distance
        self.buckets = config.buckets if causal else config.buckets // 2  # of one direction
        self.table = nn.Parameter(torch.randn(config.buckets, heads) * (heads * depth) ** -0.5)
        near = torch.arange(-self.distance, self.distance + 1)  # all further ones are in the same buckets as the ends
        self.register_buffer("near", self.bucket(near), persistent=False)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of every distance from query to key."""
        exact = self.buckets // 2
        far = distance.abs().clamp(min=1).float()
        steps = torch.log(far / exact) / math.log(self.distance / exact) * (self.buckets - exact)
        further = (exact + steps.long()).clamp(max=self.buckets - 1)
        size = torch.where(distance.abs() < exact, distance.abs(), further)
        return size if self.causal else size + self.buckets * (distance > 0)

    def bias(self, query: Tensor, distance: Tensor, scale: float) -> Tensor:
        bias = fused_layers.distance_bias(query, self.table, self.near, distance)
        if bias is not None:
            return bias
        buckets = self.near[distance.clamp(-self.distance, self.distance) + self.distance]  # a fifth of the kernels
        return self.table[buckets].permute(2, 0, 1)[None]


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
