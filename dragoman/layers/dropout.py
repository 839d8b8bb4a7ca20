"""Dropout (FIELD G4), with cheap random bits on the CPU, where torch's own draws take six times as long."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 2**16  # random bits come in pieces of 16: a rate is met to within half of 1/65536


def kept(rate: float) -> int:
    """How many of 65,536 equally likely draws keep a number."""
    return round((1.0 - rate) * STEPS)


def keep_mask(shape: Sequence[int], rate: float, like: Tensor) -> Tensor:
    """Zeros, and ones divided by the true share of them; it follows from torch's random state alone."""
    count = 1
    for size in shape:
        count *= size
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    draws = words.view(torch.int16)[:count].view(*shape)  # −32,768 to 32,767
    # Compared as floating-point numbers, in place: every other way to a mask of these takes longer.
    keeps = kept(rate)
    return draws.to(like.dtype).lt_(keeps - STEPS // 2).mul_(STEPS / keeps)


def cheaply(x: Tensor, rate: float) -> bool:
    """Whether `keep_mask` serves: on the CPU, in numbers that hold 16 bits, with some dropped and some kept."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and 0 < kept(rate) < STEPS


def drop(x: Tensor, rate: float) -> Tensor:
    """Zero a share of the numbers and raise the others, so that the expectation stays."""
    if rate and cheaply(x, rate):
        return x * keep_mask(x.shape, rate, x)
    return F.dropout(x, rate)


class Dropout(nn.Dropout):
    """`drop` while training."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return drop(x, self.p) if self.training else x
