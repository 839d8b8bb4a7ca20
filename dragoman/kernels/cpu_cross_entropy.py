"""The summed cross-entropy over the vocabulary on the CPU, a chunk of real tokens at a time.

Loss and gradients are found together while the scores of a chunk are in the cache, so the scores of a whole batch
never exist, padding costs nothing, and label smoothing takes no pass over them: it is linear, so what it adds follows
from the mean row of the table.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dragoman.kernels.cpu_linear import column_sums

CHUNK = 2**21  # scores at a time: 8 MB in float32


def total_loss(
    hidden: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None, smoothing: float, pad: int
) -> Tensor:
    """The sum over real places of hidden (B, T, D) and target (B, T); weight (V, D), bias (V,)."""
    real = (target.flatten() != pad).nonzero()[:, 0]
    total: Tensor = _TotalLoss.apply(  # type: ignore[no-untyped-call]
        hidden.flatten(0, 1)[real], target.flatten()[real], weight, bias, smoothing
    )
    return total


class _TotalLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None, smoothing: float
    ) -> Tensor:
        vocabulary = weight.shape[0]
        size = max(1, CHUNK // vocabulary)
        truth = 1.0 - smoothing
        total = hidden.new_zeros((), dtype=torch.float64)
        of_hidden, of_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        of_bias = None if bias is None else torch.zeros_like(bias)
        for first in range(0, hidden.shape[0], size):
            x, words = hidden[first : first + size], target[first : first + size, None]  # (n, D), (n, 1)
            scores = x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())  # (n, V)
            chosen, highest = scores.gather(1, words)[:, 0], scores.amax(1)
            torch.softmax(scores, 1, out=scores)
            whole = highest - scores.amax(1).log()  # the highest chance is at least 1/V: its logarithm is exact enough
            total += (whole - truth * chosen).sum(dtype=torch.float64)
            scores.scatter_add_(1, words, scores.new_full((), -truth).expand_as(words))
            torch.mm(scores, weight, out=of_hidden[first : first + size])
            of_weight.addmm_(scores.t(), x)
            if of_bias is not None:
                of_bias += column_sums(scores)
        if smoothing:
            share = smoothing / vocabulary
            mean, together = weight.sum(0) * share, hidden.sum(0)
            total -= (together.double() * mean.double()).sum()
            of_hidden -= mean
            of_weight -= together * share
            if bias is not None and of_bias is not None:
                total -= bias.sum(dtype=torch.float64) * (share * hidden.shape[0])
                of_bias -= share * hidden.shape[0]
        ctx.save_for_backward(of_hidden, of_weight, of_bias)
        return total.to(hidden.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_weight, of_bias = ctx.saved_tensors
        return of_hidden * gradient, None, of_weight * gradient, None if of_bias is None else of_bias * gradient, None
