"""Softmax attention over short sequences on the CPU, dropout of its weights included.

The fused kernel is made for long sequences and knows no dropout; what torch does instead takes three times as long.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dragoman.kernels import cpu_dropout
from dragoman.kernels.cpu_matmul import products, slow_stacks

SHORT = 64  # positions of queries and of keys up to which this beats the fused kernel without dropout


def suits(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> bool:
    """Whether this serves here and is faster: while training, where torch multiplies stacks slowly."""
    rows, heads, length, _ = query.shape
    return (
        torch.is_grad_enabled()
        and (query.requires_grad or key.requires_grad or value.requires_grad)
        and (rows, heads) == key.shape[:2]
        and query.dtype == key.dtype == value.dtype
        and (cpu_dropout.suits(query, dropout) if dropout else max(length, key.shape[2]) <= SHORT)
        and slow_stacks(query)
    )


def attend_small(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, dropout: float, scale: float
) -> Tensor:
    """As `attend`: queries (B, H, T, d), keys and values (B, H, S, d), mask True = real; → (B, H, T, d)."""
    length, seen = query.shape[2], key.shape[2]
    if causal:
        earlier = torch.ones(length, seen, dtype=torch.bool).tril()
        mask = earlier if mask is None else mask & earlier
    added, something = None, None
    if mask is not None:
        # Half of the smallest number: a sum with it stays finite, so a query with nothing to look at gives no NaN.
        added = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, torch.finfo(query.dtype).min / 2)
        sees = mask.any(-1, keepdim=True)
        something = None if bool(sees.all()) else sees.to(query.dtype)
    drops = cpu_dropout.keep_mask((*query.shape[:2], length, seen), dropout, query) if dropout else None
    out: Tensor = _Attention.apply(query, key, value, added, drops, scale)  # type: ignore[no-untyped-call]
    return out if something is None else out * something


def _beside(x: Tensor) -> Tensor:
    """Room for something like x (B, H, T, d) whose heads lie side by side, so that joining them copies nothing."""
    rows, heads, length, depth = x.shape
    return x.new_empty(rows, length, heads, depth).transpose(1, 2)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, added: Tensor | None, drops: Tensor | None, scale: float
    ) -> Tensor:
        query = torch.mul(query, scale, out=query.new_empty(query.shape))
        key = key.contiguous()
        scores = products(query, key.transpose(-2, -1))  # (B, H, T, S)
        if added is not None:
            scores += added
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(query, key, value, weights, drops)
        ctx.scale = scale
        return products(weights if drops is None else weights * drops, value, _beside(query))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, drops = ctx.saved_tensors
        used = weights if drops is None else weights * drops
        of_value = products(used.transpose(-2, -1), gradient, _beside(value))
        of_weights = products(gradient, value.transpose(-2, -1))
        if drops is not None:
            of_weights *= drops
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        of_query = products(of_scores, key, _beside(query)).mul_(ctx.scale)
        of_key = products(of_scores.transpose(-2, -1), query, _beside(key))
        return of_query, of_key, of_value, None, None, None
