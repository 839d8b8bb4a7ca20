"""Attention without a softmax, at a cost linear in length (Katharopoulos et al. 2020).

The weight of a key is φ(q)·φ(k), so that keys and values can be summed before a query is known (their eq. 6),
and a decoder is a recurrent network whose state is that sum (their eq. 18–20). A one is appended to every
value: the sum then carries its own divisor.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.layers.attention import observed, show

CHUNK = 64  # positions compared pairwise; between chunks only sums are passed on


def features(x: Tensor) -> Tensor:
    """φ(x) = elu(x) + 1 (their eq. 7), in full precision: these are summed over the whole sequence."""
    return F.elu(x.to(torch.promote_types(x.dtype, torch.float32))) + 1


def with_one(value: Tensor) -> Tensor:
    """(…, e) → (…, e+1)."""
    return F.pad(value.to(torch.promote_types(value.dtype, torch.float32)), (0, 1), value=1.0)


def divided(read: Tensor) -> Tensor:
    """(…, e+1) → (…, e); where nothing was seen, zeros."""
    total, weight = read[..., :-1], read[..., -1:]
    return total / weight.masked_fill(weight == 0, 1.0)


def attend_linear(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Every query over every real key (their eq. 6); all (B, H, S, d), mask (B, S)."""
    with torch.autocast(query.device.type, enabled=False):
        seen = mask[:, None, :, None]
        left, right = features(query), features(key) * seen
        if observed():
            show(module, shares(left @ right.transpose(-2, -1)))
        total = right.transpose(-2, -1) @ with_one(value)  # (B, H, d, e+1)
        return divided(left @ total).to(value.dtype)


def extend_linear(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, past: Tensor, length: Tensor | int
) -> tuple[Tensor, Tensor]:
    """New positions over the past (N, H, d, e+1), which is a sum, and over each other up to their own place.

    Keys in the past can no longer be told apart: whoever watches sees zeros there, in rows that then sum to the
    share of the new positions.
    """
    new = query.shape[2]
    with torch.autocast(query.device.type, enabled=False):
        left, right, extended = features(query), features(key), with_one(value)
        if observed():
            pairs = (left @ right.transpose(-2, -1)).tril()
            show(module, F.pad(shares(pairs, (left @ past)[..., -1:]), (int(length), 0)))
        chunk = min(new, CHUNK)
        left, right, extended = (in_chunks(part, chunk) for part in (left, right, extended))
        within = (left @ right.transpose(-2, -1)).tril() @ extended
        sums = torch.cat([past[:, :, None], right.transpose(-2, -1) @ extended], 2).cumsum(2)  # (N, H, n+1, d, e+1)
        read = (within + left @ sums[:, :, :-1]).flatten(2, 3)[:, :, :new]
        return divided(read).to(value.dtype), sums[:, :, -1]


def in_chunks(x: Tensor, chunk: int) -> Tensor:
    """(N, H, T, e) → (N, H, n, chunk, e), with zeros at the end."""
    x = F.pad(x, (0, 0, 0, -x.shape[2] % chunk)).contiguous()
    return x.view(*x.shape[:2], -1, chunk, x.shape[3])


def shares(pairs: Tensor, past: Tensor | float = 0.0) -> Tensor:
    """Products (N, H, T, S) as parts of what a query reads, the past (N, H, T, 1) included."""
    total = pairs.sum(-1, keepdim=True) + past
    return pairs / total.masked_fill(total == 0, 1.0)
