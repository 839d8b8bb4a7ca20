"""Torch's recurrent kernels in half precision, kept right and fast.

Autocast always runs them in float16, whatever it runs all else in. Gradients of a mean over thousands of tokens are so
small that float16 rounds them away, so they are made larger on the way in and smaller on the way out, by a power of
two: nothing else changes. And matrix units read eight such numbers at a time: other sizes are filled up with zeros
(steps with an LSTM of width 1,150 took 1.5 times as long as of 1,152), and units of zeros stay zero.

Narrow layers are filled up to a multiple of 32: cuDNN 9.19 adds wrong biases to a float16 LSTM of other multiples of 8
from 40 to 176 when a batch has a multiple of 8 rows, without a word. In float32, and of other cells, all is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

ALIGNED = {"cuda": 8}  # numbers of half precision that matrix units read at a time, by device
NARROW, TILE = 256, 32  # recurrent layers below this width are filled up to a multiple of so many units

Kernel = Callable[[Tensor, tuple[Tensor, ...], list[Tensor]], tuple[Tensor, tuple[Tensor, ...]]]


def spare(size: int, device: torch.device) -> int:
    """How many zeros fill up a size for half precision on this device."""
    return -size % ALIGNED.get(device.type, 1)


def spare_units(width: int, device: torch.device) -> int:
    """`spare` of a recurrent layer."""
    if width < NARROW and device.type in ALIGNED:
        return -width % TILE
    return spare(width, device)


class Scale:
    """By what gradients are multiplied inside: known once they have come in."""

    def __init__(self) -> None:
        self.factor: Tensor | None = None


class _Enter(torch.autograd.Function):
    """What goes into a kernel; its gradients are made small again."""

    @staticmethod
    def forward(ctx: Any, scale: Scale, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return tuple(part.view_as(part) for part in parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        factor = ctx.scale.factor
        return None, *(None if one is None else (one / factor).to(one.dtype) for one in gradients)


class _Leave(torch.autograd.Function):
    """What comes out of a kernel, in the precision all else has; the largest of its gradients is made about one."""

    @staticmethod
    def forward(ctx: Any, scale: Scale, dtype: torch.dtype, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.scale, ctx.dtypes = scale, [part.dtype for part in parts]
        ctx.set_materialize_grads(False)
        return tuple(part.to(dtype, copy=True) for part in parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        largest = torch.stack([one.abs().amax() for one in gradients if one is not None]).amax()
        _, exponent = torch.frexp(largest.float())
        # Powers of two that float32 has; where all is zero the exponent is too.
        factor = torch.ldexp(torch.ones_like(largest, dtype=torch.float32), -exponent.clamp(-100, 100))
        ctx.scale.factor = factor
        scaled = (
            None if one is None else (one * factor).to(dtype) for one, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return None, None, *scaled


def with_scaled_gradients(
    kernel: Kernel, x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], dtype: torch.dtype
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """kernel(x, state, weights) as `dtype`, whose gradients inside are neither too small nor too large for float16."""
    scale = Scale()
    entered = _Enter.apply(scale, x, *state, *weights)  # type: ignore[no-untyped-call]
    between = 1 + len(state)
    out, after = kernel(entered[0], tuple(entered[1:between]), list(entered[between:]))
    out, *after_all = _Leave.apply(scale, dtype, out, *after)  # type: ignore[no-untyped-call]
    return out, tuple(after_all)


def filled_up(
    x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], blocks: int
) -> tuple[Tensor, tuple[Tensor, ...], list[Tensor]]:
    """x (N, T, I), states (N, D), weights (blocks·D, I), (blocks·D, D) and biases, with zeros up to aligned sizes."""
    inputs, width = x.shape[-1], state[0].shape[-1]
    more_inputs, more_width = spare(inputs, x.device), spare_units(width, x.device)
    if not more_inputs and not more_width:
        return x, tuple(state), list(weights)

    def rows(part: Tensor, columns: int) -> Tensor:
        """Zeros below every block, and after every row."""
        below = (0, columns, 0, more_width) if part.dim() == 2 else (0, more_width)
        return F.pad(part.reshape(blocks, width, *part.shape[1:]), below).flatten(0, 1)

    from_input, from_hidden, *biases = weights
    filled = [rows(from_input, more_inputs), rows(from_hidden, more_width), *(rows(bias, 0) for bias in biases)]
    return F.pad(x, (0, more_inputs)), tuple(F.pad(part, (0, more_width)) for part in state), filled


def in_half_precision(
    kernel: Kernel, x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], blocks: int
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """kernel(x, state, weights) under autocast or of halves, aligned and with gradients to scale."""
    width = state[0].shape[-1]
    dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    out, after = with_scaled_gradients(kernel, *filled_up(x, state, weights, blocks), dtype)
    return out[..., :width], tuple(part[..., :width] for part in after)
