"""A Triton kernel for a sum and its layer norm, without gradients.

Imported on GPUs only.
"""

# ruff: noqa: N803  constants of a kernel are spelled as constants
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator, misc, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_norm(x, y, weight, bias, total, normed, width, eps, D: tl.constexpr, BIASED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    d = tl.arange(0, D)
    inside = d < width
    sums = tl.load(x + row + d, mask=inside, other=0.0).to(tl.float32)
    sums += tl.load(y + row + d, mask=inside, other=0.0).to(tl.float32)
    rounded = sums.to(total.dtype.element_ty)
    tl.store(total + row + d, rounded, mask=inside)
    sums = rounded.to(tl.float32)  # the norm of the rounded sum, as the plain code computes it
    middle = tl.sum(sums, 0) / width
    apart = tl.where(inside, sums - middle, 0.0)
    scaled = apart / tl.sqrt(tl.sum(apart * apart, 0) / width + eps)
    scaled *= tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        scaled += tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row + d, scaled.to(normed.dtype.element_ty), mask=inside)


def add_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """x + y and its layer norm, both like x (…, D)."""
    x, y = x.contiguous(), y.contiguous()
    total, normed = torch.empty_like(x), torch.empty_like(x)
    width = x.shape[-1]
    _add_norm[(x.numel() // width,)](
        x, y, weight, weight if bias is None else bias, total, normed, width, eps,
        D=triton.next_power_of_2(width), BIASED=bias is not None, num_warps=1 if width <= 1024 else 4,
    )  # fmt: skip
    return total, normed
