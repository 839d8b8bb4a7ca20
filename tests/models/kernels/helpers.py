"""Devices, distances and gradients that the tests of kernels share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
on_every_device = pytest.mark.parametrize("device", DEVICES)
needs_gpu = pytest.mark.gpu


def relative_error(tensor: Tensor, expected: Tensor) -> float:
    """The largest difference divided by the largest number."""
    return float((tensor - expected).detach().abs().max() / expected.detach().abs().max())


def gradients(outputs: Sequence[Tensor], weights: Sequence[Tensor], leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of the weighted sum of all outputs."""
    total = torch.stack([(output * weight).sum() for output, weight in zip(outputs, weights, strict=True)]).sum()
    return torch.autograd.grad(total, leaves)


def largest_error(
    outputs: Sequence[Tensor], expected: Sequence[Tensor], weights: Sequence[Tensor], leaves: list[Tensor]
) -> float:
    """The largest relative error of outputs and gradients."""
    pairs = [*zip(outputs, expected, strict=True)]
    pairs += zip(gradients(outputs, weights, leaves), gradients(expected, weights, leaves), strict=True)
    return max(relative_error(left, right) for left, right in pairs)
