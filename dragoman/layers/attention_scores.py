"""Scores of self- and cross-attention. All are products in the end, so that fused kernels compute them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ScaledDot(nn.Module):
    """q·k / √d (Vaswani et al. 2017, eq. 1)."""

    def __init__(self, heads: int, depth: int) -> None:
        super().__init__()
        self.scale = depth**-0.5  # factor of the product

    def query(self, x: Tensor) -> Tensor:
        """Queries (N, H, T, d) as they enter the product."""
        return x

    def key(self, x: Tensor) -> Tensor:
        """Keys (N, H, S, d) as they enter the product."""
        return x


class Dot(ScaledDot):
    """q·k, as in T5."""

    def __init__(self, heads: int, depth: int) -> None:
        super().__init__(heads, 1)


class Cosine(Dot):
    """The cosine of q and k divided by a learned temperature per head (Liu et al. 2022, Swin v2)."""

    def __init__(self, heads: int, depth: int) -> None:
        super().__init__(heads, depth)
        # A logarithm, so that it stays positive; the initial temperature is 0.1.
        self.sharpness = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))

    def query(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * self.sharpness.exp()

    def key(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


SCORES: dict[str, type[ScaledDot]] = {"scaled-dot": ScaledDot, "dot": Dot, "cosine": Cosine}
