"""What stands between the matrix products of a Transformer, in one pass over memory each: training and decoding on a
GPU in half precision.

The plain code reads and writes the residual stream eight times around a sublayer. These kernels need no compiler run:
they are ready after seconds, where torch.compile takes a minute. Everywhere else the plain code runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dragoman.models.kernels.cpu_dropout import dropout
from dragoman.models.kernels.short_attention import HALF, MAX_LENGTH, contiguous_rows, half_dtype, joined_layout
from dragoman.models.kernels.step_buffers import StepBuffers, dropout_seed, half_copy, shared
from dragoman.models.kernels.support import HAS_TRITON

MAX_WIDTH = 8192  # of a row that one program holds in registers
NORMS = {nn.LayerNorm: 1, nn.RMSNorm: 2}
ACTIVATIONS = {"relu": 1, "gelu": 2, "gelu-tanh": 3, "silu": 4}
EPILOGUES = {"relu": False, "gelu-tanh": True}  # activations of torch's matrix product: whether it is GELU
PROGRAMS = 8  # of a backward pass, on each multiprocessor
SUMS_IN_FULL = hasattr(torch.ops.aten.mm, "dtype")  # products of half precision with a float32 result: torch 2.8


_enabled: ContextVar[bool] = ContextVar("fused_layers", default=False)


@contextmanager
def enabled(buffers: StepBuffers | None = None) -> Iterator[None]:
    """Use the kernels inside. Launching them from Python takes longer than launching torch's own: they are for steps
    that a CUDA graph captures. `buffers`: those of a training step."""
    token = _enabled.set(True)
    try:
        with shared(buffers):
            yield
    finally:
        _enabled.reset(token)


def _fuses(x: Tensor) -> bool:
    """Whether the kernels serve here: enabled, on a GPU, and not while torch.compile traces the layers."""
    return x.is_cuda and HAS_TRITON and not torch.compiler.is_compiling() and _enabled.get()


def _norms(x: Tensor, norm: nn.Module) -> bool:
    return (
        type(norm) in NORMS
        and norm.weight is not None
        and x.shape[-1] <= MAX_WIDTH
        and not norm._forward_hooks
        and not norm._forward_pre_hooks
    )


def residual_norm(
    x: Tensor, out: Tensor | None, rate: float, norm: nn.Module | None, stream: bool = False
) -> tuple[Tensor, Tensor]:
    """x + dropout(out), and the norm of this sum; without `out` x itself, without `norm` the sum twice.

    Under autocast the norm is in half precision, for the next matrix product, unless it is the residual `stream`.
    """
    if out is None:
        if norm is None:
            return x, x
        rate = 0.0
    half = half_dtype(x)
    if half in HALF and _fuses(x) and (norm is None or _norms(x, norm)) and (out is None or out.dtype in HALF):
        seed = dropout_seed(x.device) if rate else None
        if norm is None:
            total = _Residual.apply(x, out, None, None, seed, rate, 0, 0.0, half)[0]  # type: ignore[no-untyped-call]
            return total, total
        bias = getattr(norm, "bias", None)
        kind, half = NORMS[type(norm)], x.dtype if stream else half
        return _Residual.apply(x, out, norm.weight, bias, seed, rate, kind, norm.eps, half)  # type: ignore[no-untyped-call]
    total = x if out is None else x + (dropout(out, rate) if rate else out)
    return total, total if norm is None else norm(total)


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, out: Tensor | None, weight: Tensor | None, bias: Tensor | None, seed: Tensor | None,
        rate: float, norm: int, epsilon: float, half: torch.dtype,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        from dragoman.models.kernels import fused_layers_triton as kernels

        ctx.set_materialize_grads(False)
        x, out = x.contiguous(), None if out is None else out.contiguous()
        total, normed, mean, scale = kernels.residual_forward(x, out, weight, bias, seed, rate, norm, epsilon, half)
        ctx.save_for_backward(total, weight, mean, scale, seed)
        ctx.rate, ctx.norm, ctx.has_bias = rate, norm, bias is not None
        ctx.out_type = None if out is None else out.dtype
        # A linear layer that made `out` wants the sum of its gradients, which pass through our hands anyway.
        node: Any = None if out is None else out.grad_fn
        is_linear = type(node) is _Linear._backward_cls
        ctx.linear = node if is_linear and node.wants_sums else None
        return (total, normed) if norm else (total,)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above_total: Tensor | None, above_normed: Tensor | None = None) -> tuple[Any, ...]:
        from dragoman.models.kernels import fused_layers_triton as kernels

        total, weight, mean, scale, seed = ctx.saved_tensors
        above_total = None if above_total is None else above_total.contiguous()
        above_normed = None if above_normed is None else above_normed.contiguous()
        count = PROGRAMS * torch.cuda.get_device_properties(total.device).multi_processor_count
        norm = ctx.norm if above_normed is not None else 0
        has_bias = bool(norm and ctx.has_bias)
        of_x, of_out, of_weight, of_bias, sums = kernels.residual_backward(
            total, weight, has_bias, mean, scale, above_total, above_normed, ctx.out_type, seed, ctx.rate, norm, count,
            ctx.linear is not None,
        )  # fmt: skip
        if of_out is not None and ctx.linear is not None:
            ctx.linear.summed = of_out, of_out._version, sums
        return of_x, of_out, of_weight, of_bias, None, None, None, None, None


def fuses_linear(x: Tensor) -> bool:
    """Whether `linear` has a faster backward pass than torch for inputs like x."""
    return torch.is_grad_enabled() and half_dtype(x) in HALF and _fuses(x) and SUMS_IN_FULL


def linear(x: Tensor, *layers: nn.Linear) -> Tensor:
    """A product in half precision whose gradients of weight and bias are summed in float32, without a copy.

    torch rounds the sums to half precision and converts them afterwards; its sum over rows, for the bias, takes three
    times as long. Several layers that read the same input are one product; all of them have a bias, or none.
    """
    half = half_dtype(x)
    biases = [layer.bias for layer in layers if layer.bias is not None]
    return _Linear.apply(x.to(half), len(layers), *(layer.weight for layer in layers), *biases)  # type: ignore[no-untyped-call]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *given: Tensor) -> Tensor:
        low = [half_copy(tensor, x.dtype) for tensor in given]
        weight, *bias = (part[0] if count == 1 else torch.cat(part) for part in (low[:count], low[count:]) if part)
        ctx.save_for_backward(x, weight)
        ctx.count, ctx.given = count, [(tensor.shape[0], tensor.dtype) for tensor in given]
        ctx.wants_sums, ctx.summed = bool(bias), None
        return F.linear(x, weight, *bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        from dragoman.models.kernels import fused_layers_triton as kernels

        x, weight = ctx.saved_tensors
        sizes = [size for size, _ in ctx.given[: ctx.count]]
        rows = above.reshape(-1, above.shape[-1])
        gradients = torch.split(torch.mm(rows.t(), x.reshape(-1, x.shape[-1]), out_dtype=torch.float32), sizes)
        if ctx.wants_sums:
            sums = _summed(ctx, above)
            gradients += torch.split(kernels.column_sums(rows.contiguous()) if sums is None else sums, sizes)
        dtypes = (dtype for _, dtype in ctx.given)
        return above @ weight, None, *(one.to(dtype) for one, dtype in zip(gradients, dtypes, strict=True))


def split_columns(x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """torch.split along the last axis; gradients that stand side by side in memory are joined without a copy."""
    if not (torch.is_grad_enabled() and _fuses(x)):
        return torch.split(x, sizes, -1)
    return _Split.apply(x, sizes)  # type: ignore[no-untyped-call]


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        ctx.sizes = sizes
        return torch.split(x, sizes, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *parts: Tensor) -> tuple[Tensor, None]:
        first, width = parts[0], sum(ctx.sizes)
        place, beside = first.storage_offset(), True
        for part, size in zip(parts, ctx.sizes, strict=True):
            beside &= part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            beside &= part.storage_offset() == place and part.stride() == first.stride() and part.stride(-1) == 1
            place += size
        # Rows of just this width: nothing else stands between the parts of one row and those of the next.
        if beside and first.stride(-2) == width:
            return first.as_strided((*first.shape[:-1], width), first.stride(), first.storage_offset()), None
        return torch.cat(parts, -1), None


def _summed(ctx: Any, above: Tensor) -> Tensor | None:
    """The column sums of the gradient from above, if the kernel that wrote it added them up.

    Autograd may also have added other gradients to it: into other memory, or in place.
    """
    if ctx.summed is None:
        return None
    (written, version, sums), ctx.summed = ctx.summed, None
    same = above.data_ptr() == written.data_ptr() and above.shape == written.shape and above._version == version
    return sums if same else None


def token_ids(tokens: Tensor, table: Tensor) -> Tensor:
    """The rows of an embedding table to read. Its gradient sorts them, and 32 bits take half of the time of 64."""
    return tokens.int() if torch.is_grad_enabled() and _fuses(table) else tokens


def activated_linear(layer: nn.Linear, x: Tensor, activation: str) -> Tensor | None:
    """activation(W x + b) without gradients, by one matrix product; None: use the plain code."""
    known = activation in EPILOGUES and layer.bias is not None and x.dtype == layer.weight.dtype
    if not known or torch.is_grad_enabled() or x.dtype not in HALF or not _fuses(x):
        return None
    rows, gelu = x.reshape(-1, x.shape[-1]), EPILOGUES[activation]
    return torch._addmm_activation(layer.bias, rows, layer.weight.t(), use_gelu=gelu).view(*x.shape[:-1], -1)


def activate(x: Tensor, gate: Tensor | None, activation: str, plain: Any, rate: float) -> Tensor:
    """dropout(activation(x)), or dropout(activation(gate) · x); `plain` is the activation as a function of torch."""
    if x.dtype in HALF and _fuses(x):
        kind, seed = ACTIVATIONS[activation], dropout_seed(x.device) if rate else None
        return _Activation.apply(x, gate, seed, rate, kind)  # type: ignore[no-untyped-call]
    value: Tensor = plain(x) if gate is None else plain(gate) * x
    return dropout(value, rate) if rate else value


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor | None, seed: Tensor | None, rate: float, kind: int) -> Tensor:
        from dragoman.models.kernels import fused_layers_triton as kernels

        x, gate = x.contiguous(), None if gate is None else gate.contiguous()
        ctx.save_for_backward(x, gate, seed)
        ctx.rate, ctx.kind = rate, kind
        return kernels.activation_forward(x, gate, seed, rate, kind)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        from dragoman.models.kernels import fused_layers_triton as kernels

        x, gate, seed = ctx.saved_tensors
        return (*kernels.activation_backward(x, gate, above.contiguous(), seed, ctx.rate, ctx.kind), None, None, None)


def cross_entropy(logits: Tensor, target: Tensor, smoothing: float, words: int, pad: int) -> Tensor:
    """Losses (N,) of logits (N, ≥ words) and target (N,), zero where it is `pad`; further columns are ignored."""
    if logits.dtype in HALF and _fuses(logits):
        return _CrossEntropy.apply(logits.contiguous(), target, smoothing, words, pad)  # type: ignore[no-untyped-call]
    scores = logits[:, :words].float() if logits.dtype in HALF else logits[:, :words]
    return F.cross_entropy(scores, target, ignore_index=pad, reduction="none", label_smoothing=smoothing)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float, words: int, pad: int) -> Tensor:
        from dragoman.models.kernels import fused_layers_triton as kernels

        losses, sums = kernels.entropy_forward(logits, target, smoothing, words, pad)
        ctx.save_for_backward(logits, target, sums)
        ctx.numbers = (smoothing, words, pad)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        from dragoman.models.kernels import fused_layers_triton as kernels

        logits, target, sums = ctx.saved_tensors
        gradient = kernels.entropy_backward(logits, target, sums, above.contiguous(), *ctx.numbers)
        return gradient, None, None, None, None


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor | None:
    """x (N, H, T, d) with the pair (i, i + d/2) rotated by position · base^(−2i/d); None: use the plain code."""
    if x.dtype in HALF and x.stride(3) == 1 and _fuses(x):
        return _Rotary.apply(x, positions, base)  # type: ignore[no-untyped-call]
    return None


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor, base: float) -> Tensor:
        from dragoman.models.kernels import fused_layers_triton as kernels

        ctx.save_for_backward(positions)
        ctx.base = base
        out = joined_layout(x)
        kernels.rotary(x, positions, base, 1.0, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        from dragoman.models.kernels import fused_layers_triton as kernels

        above = contiguous_rows(above)
        out = joined_layout(above)
        kernels.rotary(above, ctx.saved_tensors[0], ctx.base, -1.0, out)  # the inverse is the transpose
        return out, None, None


def distance_bias(query: Tensor, table: Tensor, buckets: Tensor, distance: Tensor) -> Tensor | None:
    """The entries (1, H, T, S) of a table (buckets, H) for distances (T, S), which are few; None: use the plain code.

    `buckets` has those of the distances −d … d, and further ones belong to the ends. torch would sort all distances to
    add up the gradient of the table.
    """
    if half_dtype(query) in HALF and distance.numel() <= MAX_LENGTH**2 and _fuses(query):
        return _DistanceBias.apply(table, buckets, distance)  # type: ignore[no-untyped-call]
    return None


class _DistanceBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, buckets: Tensor, distance: Tensor) -> Tensor:
        from dragoman.models.kernels import fused_layers_triton as kernels

        table, distance = table.contiguous(), distance.contiguous()
        ctx.save_for_backward(buckets, distance)
        ctx.table = table.shape, table.dtype
        return kernels.distance_bias(table, buckets, distance)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        from dragoman.models.kernels import fused_layers_triton as kernels

        buckets, distance = ctx.saved_tensors
        shape, dtype = ctx.table
        of_table = above.new_empty(shape, dtype=dtype)
        kernels.distance_bias_backward(buckets, distance, above.contiguous(), of_table)
        return of_table, None, None
