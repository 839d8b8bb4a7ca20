"""Softmax attention over short sequences on a CPU, with dropout of the weights.

torch's fused kernel is made for long sequences and has no dropout; what torch runs instead takes three times as long.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dragoman.models.kernels import cpu_dropout
from dragoman.models.kernels.cpu_matmul import batched_matmul, slow_batched_matmul

SHORT = 64  # up to so many queries and keys this is faster than the fused kernel without dropout


def supports(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> bool:
    """Whether this applies and is faster: while training, where torch multiplies batches of matrices slowly."""
    rows, heads, length, _ = query.shape
    return (
        torch.is_grad_enabled()
        and (query.requires_grad or key.requires_grad or value.requires_grad)
        and (rows, heads) == key.shape[:2]
        and query.dtype == key.dtype == value.dtype
        and (cpu_dropout.supports(query, dropout) if dropout else max(length, key.shape[2]) <= SHORT)
        and slow_batched_matmul(query)
    )


def attend_small(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
    scale: float,
    bias: Tensor | None = None,
) -> Tensor:
    """Queries (B, H, T, d), keys and values (B, H, S, d), mask True = visible → (B, H, T, d).

    The bias is added to the scaled scores (B, H, T, S); torch's kernel has no gradient of it.
    """
    length, keys = query.shape[2], key.shape[2]
    if causal:
        earlier = torch.ones(length, keys, dtype=torch.bool).tril()
        mask = earlier if mask is None else mask & earlier
    added, sees_any = None, None
    if mask is not None:
        # Half of the smallest number: sums with it stay finite, so a query that sees no key gives no NaN.
        added = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, torch.finfo(query.dtype).min / 2)
        sees = mask.any(-1, keepdim=True)
        sees_any = None if bool(sees.all()) else sees.to(query.dtype)
    drops = cpu_dropout.keep_mask((*query.shape[:2], length, keys), dropout, query) if dropout else None
    bias = None if bias is None else bias.to(query.dtype)
    out: Tensor = _Attention.apply(query, key, value, bias, added, drops, scale)  # type: ignore[no-untyped-call]
    return out if sees_any is None else out * sees_any


def _joined_layout(x: Tensor) -> Tensor:
    """A new tensor like x (B, H, T, d) with the memory layout (B, T, H, d), so that joining heads copies nothing."""
    rows, heads, length, depth = x.shape
    return x.new_empty(rows, length, heads, depth).transpose(1, 2)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        added: Tensor | None,
        drops: Tensor | None,
        scale: float,
    ) -> Tensor:
        query = torch.mul(query, scale, out=query.new_empty(query.shape))
        key = key.contiguous()
        scores = batched_matmul(query, key.transpose(-2, -1))  # (B, H, T, S)
        for part in (bias, added):
            if part is not None:
                scores += part
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(query, key, value, weights, drops)
        ctx.scale, ctx.bias_shape = scale, None if bias is None else bias.shape
        return batched_matmul(weights if drops is None else weights * drops, value, _joined_layout(query))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, drops = ctx.saved_tensors
        dropped = weights if drops is None else weights * drops
        d_value = batched_matmul(dropped.transpose(-2, -1), gradient, _joined_layout(value))
        d_weights = batched_matmul(gradient, value.transpose(-2, -1))
        if drops is not None:
            d_weights *= drops
        d_scores = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype)
        d_query = batched_matmul(d_scores, key, _joined_layout(query)).mul_(ctx.scale)
        d_key = batched_matmul(d_scores.transpose(-2, -1), query, _joined_layout(key))
        d_bias = None if ctx.bias_shape is None else d_scores.sum_to_size(ctx.bias_shape)
        return d_query, d_key, d_value, d_bias, None, None, None
