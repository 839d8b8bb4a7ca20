"""torch's own recurrent functions over whole sequences: cuDNN on a GPU.

Autocast always runs them in float16, whatever type it uses elsewhere. Gradients of a mean over thousands of tokens are
so small that float16 rounds them to zero. So they are scaled up before the backward pass of the kernel and scaled down
after it, by a power of two, which changes nothing else.

Tensor cores read eight such numbers at a time. Other sizes are padded with zeros (steps with an LSTM of width 1,150
took 1.5 times as long as of width 1,152), and units of zeros stay zero. Narrow layers are padded to a multiple of 32:
cuDNN 9.19 silently adds wrong biases to a float16 LSTM of other multiples of 8 from 40 to 176 when a batch has a
multiple of 8 rows. In float32, and for other cells, its results are right.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dragoman.models.kernels.alignment import ALIGNMENT, padding

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
    "lstm": torch.lstm,
    "gru": torch.gru,
}
NARROW, NARROW_MULTIPLE = 256, 32  # recurrent layers below this width are padded to this multiple
# Where torch's function is the fastest, by device; measured by benchmarks/recurrence.py.
BY_TORCH: dict[str, frozenset[str]] = {"cpu": frozenset(), "cuda": frozenset(FUNCTIONS)}
# On a CPU it is without gradients: 1.1 to 2.5 times as fast as plain steps, but for its LSTM on ARM.
ENCODES_ON_CPU = frozenset(FUNCTIONS) - ({"lstm"} if platform.machine().lower() in ("aarch64", "arm64") else set())


def torch_is_faster(name: str, x: Tensor) -> bool:
    """Whether torch has a function of this name that is the fastest on the device of x."""
    if name in BY_TORCH.get(x.device.type, ()):
        return True
    if x.device.type != "cpu" or name not in ENCODES_ON_CPU or torch.is_grad_enabled():
        return False
    return not is_low_precision(x) and not torch.compiler.is_compiling()


def is_low_precision(x: Tensor) -> bool:
    """Whether products with x are computed in half precision: by autocast, or because x has such a type."""
    return torch.is_autocast_enabled(x.device.type) or x.dtype.itemsize == 2


def torch_rnn(
    name: str, x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """x (N, T, I), states (N, D) each, weights W_ih, W_hh, b_ih, b_hh → outputs (N, T, D) and the state after them."""
    kernel = partial(_call, name)
    return in_half_precision(kernel, x, state, weights) if is_low_precision(x) else kernel(x, state, weights)


def _call(
    name: str, x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    initial = [tensor[None].contiguous() for tensor in state]
    weights = in_one_chunk(weights) if x.is_cuda else list(weights)
    hidden = initial if name == "lstm" else initial[0]
    biases, layers, dropout, bidirectional, batch_first = True, 1, 0.0, False, True
    training = torch.is_grad_enabled()  # cuDNN keeps what the backward pass needs only then; there is no dropout here
    out, *after = FUNCTIONS[name](x, hidden, weights, biases, layers, dropout, training, bidirectional, batch_first)
    return out, tuple(tensor[0] for tensor in after)


def in_one_chunk(weights: Sequence[Tensor]) -> list[Tensor]:
    """The same weights as views of one new flat tensor, in their order.

    cuDNN reads W_ih, W_hh, b_ih, b_hh from one chunk of memory. From separate tensors torch copies them into one at
    every call, too, but warns each time.
    """
    flat = torch.cat([weight.reshape(-1) for weight in weights])
    chunks = torch.split(flat, [weight.numel() for weight in weights])
    return [chunk.view(weight.shape) for chunk, weight in zip(chunks, weights, strict=True)]


# Half precision

Kernel = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, tuple[Tensor, ...]]]


def in_half_precision(
    kernel: Kernel, x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """kernel(x, state, weights), under autocast or of half-precision tensors, padded and with scaled gradients."""
    width = state[0].shape[-1]
    dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    out, after = with_scaled_gradients(kernel, *padded(x, state, weights), dtype)
    return out[..., :width], tuple(tensor[..., :width] for tensor in after)


def unit_padding(width: int, device: torch.device) -> int:
    """How many units of zeros to add to a recurrent layer of this width."""
    if width < NARROW and device.type in ALIGNMENT:
        return -width % NARROW_MULTIPLE
    return padding(width, device)


def padded(
    x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...], list[Tensor]]:
    """x (N, T, I), states (N, D), weights (blocks·D, I), (blocks·D, D) and biases, with zeros up to aligned sizes."""
    inputs, width = x.shape[-1], state[0].shape[-1]
    more_inputs, more_units = padding(inputs, x.device), unit_padding(width, x.device)
    if not more_inputs and not more_units:
        return x, tuple(state), list(weights)

    def pad_blocks(weight: Tensor, columns: int) -> Tensor:
        """Add zeros below every block of rows, and at the end of every row."""
        zeros = (0, columns, 0, more_units) if weight.dim() == 2 else (0, more_units)
        return F.pad(weight.reshape(-1, width, *weight.shape[1:]), zeros).flatten(0, 1)

    input_weight, hidden_weight, *biases = weights
    padded_weights = [pad_blocks(input_weight, more_inputs), pad_blocks(hidden_weight, more_units)]
    padded_weights += [pad_blocks(bias, 0) for bias in biases]
    return F.pad(x, (0, more_inputs)), tuple(F.pad(tensor, (0, more_units)) for tensor in state), padded_weights


def with_scaled_gradients(
    kernel: Kernel, x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], dtype: torch.dtype
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """kernel(x, state, weights) as `dtype`, with gradients inside the kernel scaled to the range of float16."""
    scale = GradientScale()
    inputs = _Unscale.apply(scale, x, *state, *weights)  # type: ignore[no-untyped-call]
    first_weight = 1 + len(state)
    out, after = kernel(inputs[0], tuple(inputs[1:first_weight]), list(inputs[first_weight:]))
    out, *scaled_after = _ScaleUp.apply(scale, dtype, out, *after)  # type: ignore[no-untyped-call]
    return out, tuple(scaled_after)


class GradientScale:
    """The factor of the gradients inside a kernel; set when the backward pass enters the kernel."""

    def __init__(self) -> None:
        self.factor: Tensor | None = None


class _Unscale(torch.autograd.Function):
    """The inputs of a kernel; the backward pass scales their gradients down again."""

    @staticmethod
    def forward(ctx: Any, scale: GradientScale, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        factor = ctx.scale.factor
        return None, *(None if gradient is None else (gradient / factor).to(gradient.dtype) for gradient in gradients)


class _ScaleUp(torch.autograd.Function):
    """The outputs of a kernel as `dtype`; the backward pass scales their largest gradient to about one."""

    @staticmethod
    def forward(ctx: Any, scale: GradientScale, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.scale, ctx.dtypes = scale, [tensor.dtype for tensor in tensors]
        ctx.set_materialize_grads(False)
        return tuple(tensor.to(dtype, copy=True) for tensor in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        largest = torch.stack([gradient.abs().amax() for gradient in gradients if gradient is not None]).amax()
        _, exponent = torch.frexp(largest.float())
        # A power of two within the range of float32; the exponent of zero is zero.
        factor = torch.ldexp(torch.ones_like(largest, dtype=torch.float32), -exponent.clamp(-100, 100))
        ctx.scale.factor = factor
        scaled = (
            None if gradient is None else (gradient * factor).to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return None, None, *scaled
