"""Whole sequences of recurrent cells on a GPU, for cells that cuDNN does not know.

A step is a product W_hh h' and the equations of the cell, which are pointwise or a norm. torch.compile makes one kernel
of the equations, and one of their gradient, which computes the step again instead of storing its gates. The gradient of
W_hh is one product over the rows of all steps; autograd through a loop computes one product per step and adds them up.

Nothing here copies a number from the device to the host, so a CUDA graph can capture it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dragoman.kernels.support import HAS_TRITON

Tensors = tuple[Tensor, ...]


def supports(x: Tensor) -> bool:
    """Whether it pays to compile a cell for these inputs: in training on a GPU."""
    return x.is_cuda and torch.is_grad_enabled() and HAS_TRITON and not torch.compiler.is_compiling()


def recurrence(cell: Any, projected: Tensor, weight: Tensor, initial: Tensors, extras: Tensors) -> Tensors:
    """All states of a `layers.cells.Cell` after every step, each (T, N, D).

    projected (T, N, blocks·D) is W_ih x + b, weight (blocks·D, D) is W_hh, initial states (N, D) each.
    """
    return _Sequence.apply(cell, len(initial), projected, weight, *initial, *extras)  # type: ignore[no-untyped-call]


def _step(cell: Any, projected: Tensor, product: Tensor, state: Tensors, extras: Tensors) -> Tensors:
    return cell.equations(projected, product, state, *extras)


def _step_gradients(
    cell: Any, projected: Tensor, product: Tensor, state: Tensors, extras: Tensors, gradients: Tensors
) -> tuple[Tensor, Tensor, Tensors, Tensors]:
    """The gradients of all inputs of a step from those of the state after it."""

    def step(projected: Tensor, product: Tensor, state: Tensors, extras: Tensors) -> Tensors:
        return cell.equations(projected, product, state, *extras)

    pull_back: Callable[..., Any] = torch.func.vjp(step, projected, product, state, extras)[1]
    return pull_back(gradients)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cell: Any, num_states: int, projected: Tensor, weight: Tensor, *rest: Tensor) -> Tensors:
        state, extras = rest[:num_states], rest[num_states:]
        precise = torch.promote_types(projected.dtype, torch.float32)
        states, products = [tuple(part.to(precise) for part in state)], []
        transposed = weight.to(projected.dtype).t()
        with torch.autocast(projected.device.type, enabled=False):  # all types are set above
            for inputs in projected.unbind():
                products.append(states[-1][0].to(projected.dtype) @ transposed)
                states.append(_compiled(_step)(cell, inputs, products[-1], states[-1], extras))
        stacked = tuple(torch.stack(part) for part in zip(*states, strict=True))  # (T + 1, N, D)
        ctx.cell, ctx.dtypes = cell, tuple(tensor.dtype for tensor in rest[:num_states])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(projected, weight, torch.stack(products), *extras, *stacked)
        return tuple(part[1:] for part in stacked)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Tensor | None) -> tuple[Any, ...]:
        projected, weight, products, *others = ctx.saved_tensors
        extras, states = tuple(others[: -len(outputs)]), others[-len(outputs) :]
        gradients = tuple(torch.zeros_like(part[0]) for part in states)
        rows: list[tuple[Tensor, Tensor, Tensors]] = []  # of the projection, the product and the extras
        matrix = weight.to(projected.dtype)
        with torch.autocast(projected.device.type, enabled=False):
            for step in range(len(projected) - 1, -1, -1):
                gradients = tuple(
                    later if output is None else later + output[step]
                    for later, output in zip(gradients, outputs, strict=True)
                )
                before = tuple(part[step] for part in states)
                inputs, product, direct, own = _compiled(_step_gradients)(
                    ctx.cell, projected[step], products[step], before, extras, gradients
                )
                gradients = (direct[0] + product @ matrix, *direct[1:])
                rows.append((inputs, product, own))
            to_projected, to_product = (torch.stack(part[::-1]) for part in list(zip(*rows, strict=True))[:2])
            hidden = states[0][:-1].to(projected.dtype)
            to_weight = (to_product.flatten(0, 1).t() @ hidden.flatten(0, 1)).to(weight.dtype)
        to_extras = [torch.stack(part).sum(0) for part in zip(*(own for *_, own in rows), strict=True)]
        to_initial = (part.to(dtype) for part, dtype in zip(gradients, ctx.dtypes, strict=True))
        return None, None, to_projected, to_weight, *to_initial, *to_extras
