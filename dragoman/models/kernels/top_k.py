"""argmax and topk over a large vocabulary, several times faster than torch's own."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.models.kernels.support import HAS_TRITON

CHUNK = 64
MIN_COLUMNS = 2048  # from here on chunks pay off
MAX_COLUMNS = 65536  # that one program of a GPU holds at once


def in_chunks(scores: Tensor) -> bool:
    """Whether it pays off to find the best of each chunk first.

    On a CPU torch finds maxima with vector instructions, but their indices one by one. On a GPU it reads all scores
    several times.
    """
    return scores.shape[-1] >= MIN_COLUMNS


def supports(weight: Tensor, size: int) -> bool:
    """Whether `beam_triton` finds the best of so many scores of a model with such weights."""
    precise = weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return weight.is_cuda and precise and size <= MAX_COLUMNS and HAS_TRITON


def argmax(scores: Tensor) -> Tensor:
    """argmax over the last axis of (N, V)."""
    if not in_chunks(scores):
        return scores.argmax(-1)
    rows, size = scores.shape
    whole = size // CHUNK * CHUNK
    chunks = scores[:, :whole].reshape(rows, -1, CHUNK)
    chunk: Tensor = chunks.amax(-1).argmax(-1)  # the first of the best chunks
    inside = chunks[torch.arange(rows, device=scores.device), chunk]
    if whole < size:
        columns = torch.cat([inside, scores[:, whole:]], 1)
        index = columns.argmax(-1)
        return torch.where(index < CHUNK, chunk * CHUNK + index, whole + index - CHUNK)
    return chunk * CHUNK + inside.argmax(-1)


def topk(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """topk over the last axis of (N, V): values and indices, the best first.

    The best `count` lie in the `count` chunks with the highest maxima, or in the remainder that fills no chunk.
    """
    rows, size = scores.shape
    whole = size // CHUNK * CHUNK
    if not in_chunks(scores) or count * CHUNK * 2 > whole:
        best = scores.topk(count, 1)
        return best.values, best.indices
    chunks = scores[:, :whole].reshape(rows, -1, CHUNK)
    # Sorted, so that of equal scores the first index wins.
    chosen = chunks.amax(-1).topk(count, 1).indices.sort(1).values  # (N, count)
    inside = chunks.gather(1, chosen[:, :, None].expand(-1, -1, CHUNK)).flatten(1)
    columns = (chosen[:, :, None] * CHUNK + torch.arange(CHUNK, device=scores.device)).flatten(1)
    if whole < size:
        inside = torch.cat([inside, scores[:, whole:]], 1)
        columns = torch.cat([columns, torch.arange(whole, size, device=scores.device).expand(rows, -1)], 1)
    values, index = inside.topk(count, 1)
    return values, columns.gather(1, index)
