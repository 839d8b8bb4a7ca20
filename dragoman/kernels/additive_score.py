"""vᵀ tanh(q + k) for every query and key (FIELD D3), the costliest part of an additive attention, step by step.

Written as torch operations it makes several tensors of (B, S, A) a step and as many on the way back. Here the keys'
gradient is summed up in one place as the steps come by, and

- on a CPU there is no tanh at all: tanh(q + k) = 2 y − 1 with y = 1 / (1 + e^(−2q) e^(−2k)), where e^(−2k) is the same
  for all steps and e^(−2q) has no source axis. What is left a step is a product, a sum and a reciprocal;
- on a GPU each way is one kernel (`additive_kernels`), which keeps nothing of that size.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dragoman.kernels.deferred_gradients import Notes, anchored

SMALL = 2**15  # fewer numbers than this are not worth the set-up: a single sentence, decoded
LIMITS = {torch.float32: 40.0, torch.float64: 300.0}  # e^(±2 LIMIT) is within the type's range


def grown(x: Tensor) -> Tensor | None:
    """e^(−2x), unless it would leave the range: then tanh has to be computed after all."""
    return torch.exp(-2.0 * x) if x.numel() == 0 or float(x.abs().amax()) < LIMITS[x.dtype] else None


class Comparison:
    """Keys and v as all steps of a pass share them, and where their gradients gather."""

    def __init__(self, vector: Tensor, keys: Tensor, grown_keys: Tensor | None = None) -> None:
        self.keys, self.grown_keys, self.vector = keys.detach(), grown_keys, vector.detach().reshape(-1)
        self.types = keys.dtype, vector.dtype, vector.shape
        self.scratch: Tensor | None = None
        self.notes = Notes()
        self.anchor = anchored(self.take, keys, vector) if torch.is_grad_enabled() else None

    def take(self) -> tuple[Tensor | None, ...]:
        """The gradients of keys (B, S, A) and v."""
        gathered = self.notes.take()
        if not gathered:
            return None, None
        (d_keys, d_vector), *_ = gathered
        return self.finish(d_keys, d_vector)

    def gathered(self) -> tuple[Tensor, Tensor]:
        """Where the steps of this backward pass add to."""
        if not self.notes.current():
            self.notes.add(*self.begin())
        keys, vector = self.notes.lines[0]
        return keys, vector

    def begin(self) -> tuple[Tensor, Tensor]:
        """Zeros to gather in."""
        return torch.zeros_like(self.keys), torch.zeros_like(self.vector)

    def finish(self, d_keys: Tensor, d_vector: Tensor) -> tuple[Tensor, Tensor]:
        """From what was gathered to gradients."""
        keys_type, vector_type, shape = self.types
        return d_keys.mul_(4.0 * self.vector).to(keys_type), d_vector.view(shape).to(vector_type)

    def forward(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (B, n, S) of queries (B, n, A), and what to keep for the way back."""
        return (self.bent(query) @ (2.0 * self.vector)).sub_(self.vector.sum()), query

    def bent(self, query: Tensor) -> Tensor:
        """y, in a place (B, n, S, A) that all steps share: fresh memory costs more than computing it twice."""
        shape = (*query.shape[:2], *self.keys.shape[1:])
        if self.scratch is None or self.scratch.shape != shape:
            self.scratch = query.new_empty(shape)
        grown_query = None if self.grown_keys is None else grown(query)
        if self.grown_keys is None or grown_query is None:
            return torch.add(query[:, :, None], self.keys[:, None], out=self.scratch).mul_(2.0).sigmoid_()
        return torch.mul(grown_query[:, :, None], self.grown_keys[:, None], out=self.scratch).add_(1.0).reciprocal_()

    def backward(self, query: Tensor, gradient: Tensor) -> Tensor:
        """The queries' gradient (B, n, A), the others' gathered; gradient (B, n, S)."""
        d_keys, d_vector = self.gathered()
        bent, flat = self.bent(query), gradient.reshape(1, -1)
        d_vector.add_((flat @ bent.view(flat.shape[1], -1))[0].mul_(2.0).sub_(flat.sum()))
        slope = bent.addcmul_(bent, bent, value=-1.0)  # y (1 − y), a quarter of the slope of tanh
        slope.mul_(gradient[:, :, :, None])
        for place in range(bent.shape[1]):
            d_keys.add_(slope[:, place])
        return slope.sum(2).mul_(4.0 * self.vector)


@cache
def _kernels() -> Any:
    try:
        from dragoman.kernels.additive_score_triton import KernelComparison
    except ImportError as error:
        warnings.warn(f"additive attention runs without its GPU kernels: {error}", stacklevel=2)
        return None
    return KernelComparison


# How vᵀ tanh(q + k) is computed; nothing: by torch, operation by operation.
COMPARISONS: dict[str, Callable[[], Any]] = {"grown": lambda: Comparison, "kernels": _kernels, "plain": lambda: None}


def way(keys: Tensor) -> str:
    """Which of the comparisons serves these keys; a compiler sees through plain torch alone, and fuses it itself."""
    if torch.compiler.is_compiling() or (keys.numel() < SMALL and not torch.is_grad_enabled()):
        return "plain"
    if keys.is_cuda:
        return "plain" if keys.dtype == torch.float64 else "kernels"
    return "grown" if keys.device.type == "cpu" and keys.dtype in LIMITS else "plain"


class _Compared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, anchor: Tensor, comparison: Any) -> Tensor:
        scores, kept = comparison.forward(query)
        ctx.comparison = comparison
        ctx.save_for_backward(kept)
        return scores  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (kept,) = ctx.saved_tensors
        return ctx.comparison.backward(kept, gradient.contiguous()), gradient.new_empty(0), None


def compared(query: Tensor, comparison: Any) -> Tensor:
    """Scores (B, n, S) of queries (B, n, A)."""
    scores: Tensor
    if torch.is_grad_enabled():
        scores = _Compared.apply(query, comparison.anchor, comparison)  # type: ignore[no-untyped-call]
    else:
        scores, _ = comparison.forward(query)
    return scores
