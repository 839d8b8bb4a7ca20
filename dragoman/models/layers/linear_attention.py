"""Linear attention: no softmax, cost linear in length (Katharopoulos et al. 2020).

The weight of a key is φ(q)·φ(k), so keys and values can be summed before the query is known (eq. 6), and a decoder is a
recurrent network whose state is that sum (eq. 18–20). A one is appended to every value, so that the sum contains its
own normaliser.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.models.layers.attention import observed, show

CHUNK = 64  # positions compared pairwise; between chunks only sums are passed


def features(x: Tensor) -> Tensor:
    """φ(x) = elu(x) + 1 (eq. 7), in full precision, because these are summed over the whole sequence."""
    return F.elu(x.to(torch.promote_types(x.dtype, torch.float32))) + 1


def with_one(value: Tensor) -> Tensor:
    """(…, e) → (…, e+1)."""
    return F.pad(value.to(torch.promote_types(value.dtype, torch.float32)), (0, 1), value=1.0)


def normalised(read: Tensor) -> Tensor:
    """(…, e+1) → (…, e); zeros where no key was visible."""
    total, weight = read[..., :-1], read[..., -1:]
    return total / weight.masked_fill(weight == 0, 1.0)


def attend_linear(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Every query over every real key (eq. 6); all (B, H, S, d), mask (B, S)."""
    with torch.autocast(query.device.type, enabled=False):
        real = mask[:, None, :, None]
        left, right = features(query), features(key) * real
        if observed():
            show(module, weights_of(left @ right.transpose(-2, -1)))
        total = right.transpose(-2, -1) @ with_one(value)  # (B, H, d, e+1)
        return normalised(left @ total).to(value.dtype)


def extend_linear(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, past: Tensor, length: Tensor | int
) -> tuple[Tensor, Tensor]:
    """New positions over the sum of the past (N, H, d, e+1) and over each other, causally; and the new sum.

    Single keys of the past are unknown: an observer sees zeros there, in rows that then sum to the share of the new
    positions.
    """
    new = query.shape[2]
    with torch.autocast(query.device.type, enabled=False):
        left, right, extended = features(query), features(key), with_one(value)
        if observed():
            pairs = (left @ right.transpose(-2, -1)).tril()
            show(module, F.pad(weights_of(pairs, (left @ past)[..., -1:]), (int(length), 0)))
        chunk = min(new, CHUNK)
        left, right, extended = (in_chunks(tensor, chunk) for tensor in (left, right, extended))
        within = (left @ right.transpose(-2, -1)).tril() @ extended
        sums = torch.cat([past[:, :, None], right.transpose(-2, -1) @ extended], 2).cumsum(2)  # (N, H, n+1, d, e+1)
        read = (within + left @ sums[:, :, :-1]).flatten(2, 3)[:, :, :new]
        return normalised(read).to(value.dtype), sums[:, :, -1]


def in_chunks(x: Tensor, chunk: int) -> Tensor:
    """(N, H, T, e) → (N, H, n, chunk, e), with zeros at the end."""
    x = F.pad(x, (0, 0, 0, -x.shape[2] % chunk)).contiguous()
    return x.view(*x.shape[:2], -1, chunk, x.shape[3])


def weights_of(pairs: Tensor, past: Tensor | float = 0.0) -> Tensor:
    """Products (N, H, T, S) divided by their sum, the past (N, H, T, 1) included."""
    total = pairs.sum(-1, keepdim=True) + past
    return pairs / total.masked_fill(total == 0, 1.0)
