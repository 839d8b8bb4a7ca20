"""A residual sum and the norm that follows it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.kernels.triton_support import HAS_TRITON

HALF = (torch.bfloat16, torch.float16)


def add_norm(x: Tensor, out: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """x + out and norm(x + out); one kernel where a GPU decodes in half precision."""
    if (
        type(norm) is nn.LayerNorm
        and x.is_cuda
        and x.dtype == out.dtype == norm.weight.dtype
        and x.dtype in HALF
        and not torch.is_grad_enabled()
        and HAS_TRITON
    ):
        from dragoman.kernels import add_norm_triton

        return add_norm_triton.add_norm(x, out, norm.weight, norm.bias, norm.eps)
    x = x + out
    return x, norm(x)
