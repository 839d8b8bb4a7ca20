"""The summed cross-entropy over the vocabulary on a CPU, one chunk of real tokens at a time.

Loss and gradients are computed together while the logits of a chunk are in the cache. So the logits of a whole batch
never exist, and padding costs nothing. Label smoothing is linear: its part follows from the mean row of the table,
without another pass over the logits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dragoman.models.kernels.cpu_matmul import column_sums

CHUNK = 2**21  # logits at a time: 8 MB in float32


def total_loss(
    hidden: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None, smoothing: float, pad: int
) -> Tensor:
    """The sum over real positions of hidden (B, T, D) and target (B, T); weight (V, D), bias (V,)."""
    real = (target.flatten() != pad).nonzero()[:, 0]
    return _TotalLoss.apply(  # type: ignore[no-untyped-call]
        hidden.flatten(0, 1)[real], target.flatten()[real], weight, bias, smoothing
    )


class _TotalLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None, smoothing: float
    ) -> Tensor:
        vocabulary = weight.shape[0]
        size = max(1, CHUNK // vocabulary)
        truth = 1.0 - smoothing
        total = hidden.new_zeros((), dtype=torch.float64)
        d_hidden, d_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        d_bias = None if bias is None else torch.zeros_like(bias)
        for first in range(0, hidden.shape[0], size):
            x, words = hidden[first : first + size], target[first : first + size, None]  # (n, D), (n, 1)
            scores = x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())  # (n, V)
            chosen, highest = scores.gather(1, words)[:, 0], scores.amax(1)
            torch.softmax(scores, 1, out=scores)
            log_sum = highest - scores.amax(1).log()  # the probability is at least 1/V: its logarithm is exact
            total += (log_sum - truth * chosen).sum(dtype=torch.float64)
            scores.scatter_add_(1, words, scores.new_full((), -truth).expand_as(words))
            torch.mm(scores, weight, out=d_hidden[first : first + size])
            d_weight.addmm_(scores.t(), x)
            if d_bias is not None:
                d_bias += column_sums(scores)
        if smoothing:
            share = smoothing / vocabulary
            mean, together = weight.sum(0) * share, hidden.sum(0)
            total -= (together.double() * mean.double()).sum()
            d_hidden -= mean
            d_weight -= together * share
            if bias is not None and d_bias is not None:
                total -= bias.sum(dtype=torch.float64) * (share * hidden.shape[0])
                d_bias -= share * hidden.shape[0]
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        return total.to(hidden.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        return d_hidden * gradient, None, d_weight * gradient, None if d_bias is None else d_bias * gradient, None
