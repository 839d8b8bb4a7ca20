"""Relative positions in self-attention: rotary (RoPE), Shaw et al. 2018, Transformer-XL, T5.

A kind rotates queries and keys before they are compared, or adds a bias to the scores, and overrides that method. The
base class does neither: for positions that were added to the embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from dragoman.models.kernels import fused_layers
from dragoman.models.layers.config import RelativeBiasConfig, RelativeConfig, RelativeSinusoidalConfig, RotaryConfig
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
        precise = torch.promote_types(x.dtype, torch.float32)
        depth = x.shape[-1]
        rates = self.base ** (-torch.arange(0, depth, 2, device=x.device, dtype=precise) / depth)
        angles = positions.to(precise)[:, None] * rates  # (T, d/2)
        cosine, sine = angles.cos(), angles.sin()
        left, right = x.chunk(2, -1)
        return torch.cat([left * cosine - right * sine, right * cosine + left * sine], -1).to(x.dtype)


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
