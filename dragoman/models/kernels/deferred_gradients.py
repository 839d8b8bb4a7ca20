"""Matrix products of a loop over time whose weight gradients are computed once, at the end of the backward pass.

A loop multiplies by the same matrix at every step. Autograd then computes one small product per step for the gradient
of that matrix and adds them up. Inside `with deferred_gradients(steps):`, `linear` and `matmul` compute the gradient of
their input at once but only record the rows of the step. After the last step of the backward pass, one product over the
rows of all steps gives the gradient of the matrix.

Autograd itself guarantees the order. Every step also reads an anchor, an empty tensor computed from the matrix, and
autograd asks for the gradient of the anchor after all steps that read it. Nothing is stored on modules, so passes of
several threads do not meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dragoman.models.kernels.cpu_matmul import column_sums

Gradients = tuple[Tensor | None, ...]

_CURRENT = local()  # .shared: what the steps of the current loop share, by tensor; None or missing outside of a loop


@contextmanager
def deferred_gradients(steps: int) -> Iterator[None]:
    """Defer the weight gradients of `linear` and `matmul` inside the block, a loop of so many steps.

    A single step, or a pass without gradients, has nothing to defer. A compiler traces the plain operations.
    """
    if torch.compiler.is_compiling() or getattr(_CURRENT, "disabled", False):
        yield
        return
    outer = getattr(_CURRENT, "shared", None)
    _CURRENT.shared = {} if steps > 1 and torch.is_grad_enabled() else None
    try:
        yield
    finally:
        _CURRENT.shared = outer


@contextmanager
def immediate_gradients() -> Iterator[None]:
    """Defer nothing inside the block, for code that back-propagates through one graph several times."""
    _CURRENT.disabled = True
    try:
        yield
    finally:
        _CURRENT.disabled = False


def deferring() -> bool:
    """Whether the caller runs inside a loop that defers gradients."""
    return not torch.compiler.is_compiling() and getattr(_CURRENT, "shared", None) is not None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · Wᵀ + b: x (…, I), weight (O, I), bias (O) → (…, O)."""
    if not deferring():
        return F.linear(x, weight, bias)
    shared = shared_by_steps(weight, bias)
    out: Tensor = _Step.apply(x.reshape(-1, x.shape[-1]), shared.anchor, shared)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:-1], -1)


def matmul(x: Tensor, matrices: Tensor) -> Tensor:
    """x · M with one matrix per source: x (B, n, I), matrices (B, I, O) → (B, n, O)."""
    if not deferring():
        return x @ matrices
    shared = shared_by_steps(matrices)
    return _Step.apply(x, shared.anchor, shared)  # type: ignore[no-untyped-call]


def shared_by_steps(matrix: Tensor, bias: Tensor | None = None) -> _Shared:
    """What the steps of the current loop share of a matrix.

    Address, shape and strides identify it, so that every step may take the same view anew.
    """
    key = (matrix.data_ptr(), matrix.shape, matrix.stride())
    if key not in _CURRENT.shared:
        _CURRENT.shared[key] = _Shared(matrix, bias)
    shared: _Shared = _CURRENT.shared[key]
    return shared


class _Anchor(torch.autograd.Function):
    """An empty tensor computed from `leaves`, for every step to read.

    Autograd asks for its gradient after all steps; that pass returns the gradients which `take` has collected.
    """

    @staticmethod
    def forward(ctx: Any, take: Callable[[], Gradients], *leaves: Tensor) -> Tensor:
        ctx.take = take
        return leaves[0].new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, empty: Tensor) -> tuple[Any, ...]:
        return None, *ctx.take()


class StepRecords:
    """What the steps of one backward pass record for its end; the next backward pass starts with an empty list."""

    def __init__(self) -> None:
        self.task = -1
        self.records: list[tuple[Tensor, ...]] = []

    def add(self, *record: Tensor) -> None:
        """Record a step; drops what an earlier pass recorded that never reached its end (a partial autograd.grad)."""
        task = torch._C._current_graph_task_id()
        if task != self.task:
            self.task, self.records = task, []
        self.records.append(record)

    def take(self) -> list[tuple[Tensor, ...]]:
        """The records of this backward pass, which is complete."""
        records = self.records if self.task == torch._C._current_graph_task_id() else []
        self.task, self.records = -1, []
        return records


MAX_SUMMED_ROWS = 16  # torch's sums over more rows take three times as long; a product per source is then faster


def vector_matrix(rows: Tensor, matrices: Tensor) -> Tensor:
    """rows (…, n, I) · matrices (…, I, O); on a CPU, one row per source needs no product per source."""
    if rows.is_cuda or rows.dim() == 2 or rows.shape[1] > 1:
        return rows @ matrices
    if matrices.stride(1) == 1:  # keys that are contiguous along I
        return (rows * matrices.transpose(1, 2)).sum(2)[:, None]
    if matrices.shape[1] > MAX_SUMMED_ROWS:
        return rows @ matrices
    return (rows.transpose(1, 2) * matrices).sum(1, keepdim=True)


class _Shared:
    """What all steps multiply by: a weight (O, I) with its bias, transposed; or one matrix per source (B, I, O)."""

    def __init__(self, matrix: Tensor, bias: Tensor | None = None) -> None:
        device = matrix.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else matrix.dtype
        self.records = StepRecords()
        self.dtypes = [tensor.dtype for tensor in (matrix, bias) if tensor is not None]
        self.bias = None if bias is None else bias.detach().to(dtype)
        fixed = matrix.detach().to(dtype)
        self.is_weight = fixed.dim() == 2
        self.matrix = fixed.t() if self.is_weight else fixed  # (…, I, O)
        # OpenBLAS multiplies by a matrix that is already transposed a sixth faster; to cuBLAS it makes no difference.
        self.factor = self.matrix.contiguous() if self.is_weight and not matrix.is_cuda else self.matrix
        leaves = [matrix] if bias is None else [matrix, bias]
        self.anchor: Tensor = _Anchor.apply(self.take, *leaves)  # type: ignore[no-untyped-call]

    def take(self) -> Gradients:
        """The gradients of matrix and bias over the rows of all steps."""
        records = self.records.take()
        if not records:
            return (None,) * len(self.dtypes)
        rows, gradients = (torch.cat(part, -2) for part in zip(*records, strict=True))  # (…, T·n, I), (…, T·n, O)
        if not self.is_weight:
            return ((rows.transpose(1, 2) @ gradients).to(self.dtypes[0]),)
        sums = [gradients.t() @ rows] + ([] if self.bias is None else [column_sums(gradients)])
        return tuple(total.to(dtype) for total, dtype in zip(sums, self.dtypes, strict=True))


class _Step(torch.autograd.Function):
    """x · M + b for the rows (…, n, I) of one step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, shared: _Shared) -> Tensor:
        rows = x.to(shared.matrix.dtype)
        ctx.shared, ctx.dtype = shared, x.dtype
        ctx.save_for_backward(rows, shared.matrix)
        if shared.bias is not None:
            return torch.addmm(shared.bias, rows, shared.factor)
        return vector_matrix(rows, shared.factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        rows, matrix = ctx.saved_tensors
        ctx.shared.records.add(rows, gradient)
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = vector_matrix(gradient, matrix.transpose(-2, -1)).to(ctx.dtype)
        return d_x, gradient.new_empty(0), None
