"""The best of many scores: torch's own functions, but several times faster over a large vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.kernels.triton_support import HAS_TRITON

CHUNK = 64
WORTH = 2048  # columns
LARGEST = 65536  # that one program of a GPU holds at once


def in_chunks(scores: Tensor) -> bool:
    """Whether a look at the best of each chunk pays.

    On a CPU torch finds maxima by eights, but their places one by one; on a GPU it reads all scores several times.
    """
    return scores.shape[-1] >= WORTH


def suits(weight: Tensor, size: int) -> bool:
    """Whether a kernel of ours finds the best of so many scores of a model with such weights."""
    precise = weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return weight.is_cuda and precise and size <= LARGEST and HAS_TRITON


def argmax(scores: Tensor) -> Tensor:
    """argmax over the last axis of (N, V)."""
    if not in_chunks(scores):
        return scores.argmax(-1)
    rows, size = scores.shape
    whole = size // CHUNK * CHUNK
    chunks = scores[:, :whole].reshape(rows, -1, CHUNK)
    place: Tensor = chunks.amax(-1).argmax(-1)  # the first of the best chunks
    inside = chunks[torch.arange(rows, device=scores.device), place]
    if whole < size:
        columns = torch.cat([inside, scores[:, whole:]], 1)
        found = columns.argmax(-1)
        return torch.where(found < CHUNK, place * CHUNK + found, whole + found - CHUNK)
    return place * CHUNK + inside.argmax(-1)


def topk(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """topk over the last axis of (N, V): values and places, the best first.

    The best `count` lie in the `count` chunks with the highest maxima, or in the rest that fills no chunk.
    """
    rows, size = scores.shape
    whole = size // CHUNK * CHUNK
    if not in_chunks(scores) or count * CHUNK * 2 > whole:
        found = scores.topk(count, 1)
        return found.values, found.indices
    chunks = scores[:, :whole].reshape(rows, -1, CHUNK)
    # In their order, so that of equal scores the first places are met first.
    places = chunks.amax(-1).topk(count, 1).indices.sort(1).values  # (N, count)
    inside = chunks.gather(1, places[:, :, None].expand(-1, -1, CHUNK)).flatten(1)
    columns = (places[:, :, None] * CHUNK + torch.arange(CHUNK, device=scores.device)).flatten(1)
    if whole < size:
        inside = torch.cat([inside, scores[:, whole:]], 1)
        columns = torch.cat([columns, torch.arange(whole, size, device=scores.device).expand(rows, -1)], 1)
    values, index = inside.topk(count, 1)
    return values, columns.gather(1, index)
