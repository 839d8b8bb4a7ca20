"""Scaled dot-product attention: one function that picks the fastest kernel."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.models.kernels import cpu_attention, short_attention


def attention(
    query: Tensor,  # (B, H, T, d)
    key: Tensor,  # (B, K, S, d); K divides H, and H/K heads in a row share a key head
    value: Tensor,  # (B, K, S, d)
    mask: Tensor | None,  # True = visible, broadcastable to (B, H, T, S)
    bias: Tensor | None,  # added to the scaled scores, broadcastable to (B, H, T, S)
    causal: bool,
    dropout: float,
    scale: float | None,  # None: 1/√d
) -> Tensor:
    """softmax(scale · q kᵀ + bias) v → (B, H, T, d); a query that sees no key reads zeros."""
    factor = query.shape[3] ** -0.5 if scale is None else scale
    if cpu_attention.supports(query, key, value, dropout):
        return cpu_attention.attend_small(query, key, value, mask, causal, dropout, factor, bias)
    if short_attention.supports(query, key, mask, bias):
        return short_attention.attend_short(query, key, value, mask, causal, dropout, factor, bias)
    return torch_attention(query, key, value, mask, bias, causal, dropout, scale)


def torch_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    dropout: float,
    scale: float | None,
) -> Tensor:
    if causal and bias is not None:  # torch's own takes a mask or `is_causal`, not both
        earlier = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
        mask, causal = earlier if mask is None else mask & earlier, False
    sees_any = None
    if mask is not None:
        # A query that sees no key attends to all of them, and its output is then set to zero: of such a row cuDNN's
        # bfloat16 kernel computes numbers in the output and NaN in the gradient (torch 2.11).
        sees_any = mask.any(-1, keepdim=True)
        if mask.device.type == "cpu" and not torch.compiler.is_compiling() and bool(sees_any.all()):
            sees_any = None  # the usual case; on a GPU this question would have to wait for the answer
        else:
            mask = mask | ~sees_any
    if bias is not None:
        bias = bias.to(query.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    grouped = False
    if query.shape[1] > key.shape[1]:  # compared here: the compiler of torch 2.6 takes no symbol as the argument
        grouped = True
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, dropout_p=dropout, scale=scale, enable_gqa=grouped
    )
    return out if sees_any is None else out * sees_any
