"""Products whose weights' gradients wait for the end of a pass.

A loop through time multiplies with the same matrix at every step, and autograd then makes as many small products for
its gradient and adds them up one by one. `Deferred` stands in for `F.linear` and `@` during one forward pass: going
back, a step gives its input's gradient at once and only notes down its rows; when the last step has been through, one
product over the rows of all steps gives the gradient of the matrix.

That this comes last is autograd's own order: every step also reads an anchor, an empty tensor made from the matrix, and
the anchor's gradient is asked for after all steps that read it. Nothing is kept on modules, so passes never meet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dragoman.layers.linear import column_sums

Gradients = tuple[Tensor | None, ...]


class _Anchor(torch.autograd.Function):
    """From tensors to an empty one, and back to the gradients that `take` has ready once all steps went through."""

    @staticmethod
    def forward(ctx: Any, take: Callable[[], Gradients], *leaves: Tensor) -> Tensor:
        ctx.take = take
        return leaves[0].new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, nothing: Tensor) -> tuple[Any, ...]:
        return None, *ctx.take()


def anchored(take: Callable[[], Gradients], *leaves: Tensor) -> Tensor:
    """An empty tensor for every step to read; `take` is called for the leaves' gradients when all steps are done."""
    anchor: Tensor = _Anchor.apply(take, *leaves)  # type: ignore[no-untyped-call]
    return anchor


class Notes:
    """What the steps of one backward pass leave for its end; another backward pass starts with a clean page."""

    def __init__(self) -> None:
        self.task = -1
        self.lines: list[tuple[Tensor, ...]] = []

    def add(self, *line: Tensor) -> None:
        """Note a step down; a pass that was never brought to its end (autograd.grad of a part) is forgotten."""
        task = torch._C._current_graph_task_id()
        if task != self.task:
            self.task, self.lines = task, []
        self.lines.append(line)

    def current(self) -> list[tuple[Tensor, ...]]:
        """What was noted so far in this backward pass."""
        return self.lines if self.task == torch._C._current_graph_task_id() else []

    def take(self) -> list[tuple[Tensor, ...]]:
        """What was noted in this backward pass, which is over."""
        lines = self.current()
        self.task, self.lines = -1, []
        return lines


class _Shared:
    """A matrix that many steps multiply with."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.notes = Notes()
        self.bias = None if bias is None else bias.detach().to(dtype)
        self.weight = weight.detach().to(dtype)  # (O, I)
        # OpenBLAS multiplies a sixth faster with a matrix that need not be turned; cuBLAS does not care.
        self.turned = self.weight.t() if weight.is_cuda else self.weight.t().contiguous()  # (I, O)
        self.types = (weight.dtype, None if bias is None else bias.dtype)
        self.anchor = anchored(self.take, *([weight] if bias is None else [weight, bias]))

    def take(self) -> Gradients:
        """The gradients of weight and bias over the rows of all steps."""
        lines = self.notes.take()
        of_weight, of_bias = self.types
        if not lines:
            return (None,) if of_bias is None else (None, None)
        rows = torch.cat([line[0] for line in lines])  # (T·N, I)
        gradients = torch.cat([line[1] for line in lines])  # (T·N, O)
        weight = (gradients.t() @ rows).to(of_weight)
        return (weight,) if of_bias is None else (weight, column_sums(gradients).to(of_bias))


class _Step(torch.autograd.Function):
    """x · Wᵀ + b for one step's rows (N, I)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, shared: _Shared) -> Tensor:
        rows = x.to(shared.weight.dtype)
        ctx.shared, ctx.dtype = shared, x.dtype
        ctx.save_for_backward(rows, shared.weight)
        if shared.bias is None:
            return rows @ shared.turned
        return torch.addmm(shared.bias, rows, shared.turned)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        rows, weight = ctx.saved_tensors
        ctx.shared.notes.add(rows, gradient)
        back = (gradient @ weight).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        return back, gradient.new_empty(0), None


class _Memory:
    """Matrices, one a source, that many steps multiply with: keys or values (B, I, O)."""

    def __init__(self, matrices: Tensor, dtype: torch.dtype) -> None:
        self.notes = Notes()
        self.matrices = matrices.detach().to(dtype)
        self.dtype = matrices.dtype
        self.anchor = anchored(self.take, matrices)

    def take(self) -> Gradients:
        """The matrices' gradients over the rows of all steps."""
        lines = self.notes.take()
        if not lines:
            return (None,)
        rows = torch.cat([line[0] for line in lines], 1)  # (B, T·n, I)
        gradients = torch.cat([line[1] for line in lines], 1)  # (B, T·n, O)
        return ((rows.transpose(1, 2) @ gradients).to(self.dtype),)


MOST_SUMMED = 16  # torch's sums over more rows than these take three times as long, and products for each source win


def times(rows: Tensor, matrices: Tensor) -> Tensor:
    """rows (B, n, I) · matrices (B, I, O); a single row a source, on a CPU, without a product for each source."""
    if rows.is_cuda or rows.shape[1] > 1:
        return rows @ matrices
    if matrices.stride(1) == 1:  # keys that lie along I
        return (rows * matrices.transpose(1, 2)).sum(2)[:, None]
    if matrices.shape[1] > MOST_SUMMED:
        return rows @ matrices
    return (rows.transpose(1, 2) * matrices).sum(1, keepdim=True)


class _Read(torch.autograd.Function):
    """x · M for one step's rows (B, n, I)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, memory: _Memory) -> Tensor:
        rows = x.to(memory.matrices.dtype)
        ctx.memory, ctx.dtype = memory, x.dtype
        ctx.save_for_backward(rows, memory.matrices)
        return times(rows, memory.matrices)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        rows, matrices = ctx.saved_tensors
        ctx.memory.notes.add(rows, gradient)
        back = times(gradient, matrices.transpose(1, 2)).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        return back, gradient.new_empty(0), None


class Products:
    """How a loop multiplies, step by step: at once, as torch does it."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x (…, I), weight (O, I), bias (O): (…, O)."""
        return F.linear(x, weight, bias)

    def read(self, x: Tensor, matrices: Tensor) -> Tensor:
        """x (B, n, I), matrices (B, I, O): (B, n, O)."""
        return x @ matrices

    def map(self, module: nn.Module, x: Tensor) -> Tensor:
        """module(x); a linear map may wait with its gradient."""
        out: Tensor = module(x)
        return out

    def shared(self, leaf: Tensor, make: Callable[[], Any]) -> Any:
        """What the steps of a pass have in common about a tensor."""
        return make()


class Deferred(Products):
    """During one forward pass of a loop; tensors are told apart by where they lie, so a view may be taken anew."""

    def __init__(self) -> None:
        self.found: dict[tuple[Any, ...], Any] = {}

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See Products."""
        shared = self.shared(weight, lambda: _Shared(weight, bias, product_dtype(weight)))
        out: Tensor = _Step.apply(x.reshape(-1, x.shape[-1]), shared.anchor, shared)  # type: ignore[no-untyped-call]
        return out.view(*x.shape[:-1], -1)

    def read(self, x: Tensor, matrices: Tensor) -> Tensor:
        """See Products."""
        memory = self.shared(matrices, lambda: _Memory(matrices, product_dtype(matrices)))
        out: Tensor = _Read.apply(x, memory.anchor, memory)  # type: ignore[no-untyped-call]
        return out

    def map(self, module: nn.Module, x: Tensor) -> Tensor:
        """See Products."""
        return self.linear(x, module.weight, module.bias) if type(module) is nn.Linear else super().map(module, x)

    def shared(self, leaf: Tensor, make: Callable[[], Any]) -> Any:
        """See Products."""
        key = (leaf.data_ptr(), leaf.shape, leaf.stride())
        if key not in self.found:
            self.found[key] = make()
        return self.found[key]


def product_dtype(weight: Tensor) -> torch.dtype:
    """The type products with this weight run in: autocast's, where it is on."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


DIRECT = Products()


def products_for(steps: int) -> Products:
    """What a loop of so many steps should multiply with: one step, or no gradient, has nothing to defer."""
    if steps == 1 or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return DIRECT
    return Deferred()
