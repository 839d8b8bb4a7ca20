"""A Triton kernel for the best next tokens: one program a hypothesis reads its scores once.

Imported on GPUs alone.
"""

# ruff: noqa: N803  constants of a kernel are spelled as constants
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator, misc, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 64


@triton.jit
def _best(
    scores, values, tokens, ends, size, stride, never, end, count,
    CHUNKS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    scores += row * stride
    chunk, inside = tl.arange(0, CHUNKS), tl.arange(0, WIDE)
    column = chunk[:, None] * WIDE + inside[None, :]
    every = tl.load(scores + column, mask=column < size, other=float("-inf")).to(tl.float32)
    highest = tl.max(tl.max(every, 1), 0)
    total = highest + tl.log(tl.sum(tl.sum(tl.exp(every - highest), 1), 0))
    heads = tl.max(tl.where(column < never, float("-inf"), every), 1)  # the best of every chunk
    tl.store(ends + row, tl.load(scores + end).to(tl.float32) - total)
    places = tl.full((CHUNKS,), -1, dtype=tl.int32)  # where the newest of every chunk stands, if it equals its head
    for place in range(count):
        best = tl.max(heads, 0)
        winner = tl.min(tl.where(heads == best, chunk, CHUNKS - 1), 0)  # the first of equals
        before = tl.sum(tl.where(chunk == winner, places, 0), 0)
        mine = winner * WIDE + inside
        part = tl.load(scores + mine, mask=mine < size, other=float("-inf")).to(tl.float32)
        part = tl.where(mine < never, float("-inf"), part)
        token = tl.min(tl.where((part == best) & (mine > before), mine, size - 1), 0)
        tl.store(values + row * count + place, best - total)
        tl.store(tokens + row * count + place, token.to(tl.int64))
        # Still to be had of this chunk: what is less, or as much and stands behind.
        same = tl.max(((part == best) & (mine > token)).to(tl.int32), 0) > 0
        less = tl.max(tl.where(part < best, part, float("-inf")), 0)
        heads = tl.where(chunk == winner, tl.where(same, best, less), heads)
        places = tl.where(chunk == winner, tl.where(same, token, -1), places)


def best_next(scores: Tensor, count: int, never: int, end: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of unnormalised scores (N, V) the `count` best tokens at or after column `never`, and what `end` is worth.

    → log-probabilities (N, count) in float32, tokens (N, count), log-probabilities (N, 1) of `end`.
    """
    rows, size = scores.shape
    values = torch.empty(rows, count, device=scores.device)
    tokens = torch.empty(rows, count, dtype=torch.long, device=scores.device)
    ends = torch.empty(rows, 1, device=scores.device)
    chunks = triton.next_power_of_2(triton.cdiv(size, CHUNK))
    _best[(rows,)](
        scores, values, tokens, ends, size, scores.stride(0), never, end, count,
        CHUNKS=chunks, WIDE=CHUNK, num_warps=max(4, min(32, chunks // 32)),
    )  # fmt: skip
    return values, tokens, ends
