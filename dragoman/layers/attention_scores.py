"""How a query and a key are compared: always a product in the end, so that every score keeps the fused kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ScaledDot(nn.Module):
    """q·k / √d (FIELD D4)."""

    def __init__(self, heads: int, depth: int) -> None:
        super().__init__()
        self.scale = depth**-0.5  # the product is multiplied with it

    def query(self, x: Tensor) -> Tensor:
        """Queries (N, H, T, d) as they are compared."""
        return x

    def key(self, x: Tensor) -> Tensor:
        """Keys (N, H, S, d) as they are compared."""
        return x


class Dot(ScaledDot):
    """q·k (FIELD D1), as in T5."""

    def __init__(self, heads: int, depth: int) -> None:
        super().__init__(heads, 1)


class Cosine(Dot):
    """The cosine of the angle between q and k, divided by a trained temperature of its head (FIELD D5)."""

    def __init__(self, heads: int, depth: int) -> None:
        super().__init__(heads, depth)
        # Kept as a logarithm so that it stays positive; it begins at a temperature of 0.1 (Liu et al. 2022, Swin v2).
        self.sharpness = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))

    def query(self, x: Tensor) -> Tensor:
        """Of length one over the temperature."""
        return F.normalize(x, dim=-1) * self.sharpness.exp()

    def key(self, x: Tensor) -> Tensor:
        """Of length one."""
        return F.normalize(x, dim=-1)


SCORES: dict[str, type[ScaledDot]] = {"scaled-dot": ScaledDot, "dot": Dot, "cosine": Cosine}
