"""A batch of padded rows, and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.data.tokenizers.base import EOS, PAD

Rows = Sequence[Sequence[Any] | NDArray[Any]]


class Batch(NamedTuple):
    """Sources and targets as padded rows; rows of tokens end in <eos>."""

    source: Tensor  # (B, S); two texts that are encoded separately: (B, 2, S); frames: (B, S, F)
    source_mask: Tensor  # the same shape, for frames (B, S); True = real
    target: Tensor  # (B, T), or as the task's collator makes it
    words: Tensor | None = None  # (K,): the target words that the softmax of training compares; None: all

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        source, mask, target = (tensor.to(device, non_blocking=True) for tensor in self[:3])
        words = None if self.words is None else self.words.to(device, non_blocking=True)
        return Batch(source, mask, target, words=words)

    def pin(self) -> Batch:
        """The same batch in page-locked memory, from which copies to a GPU are asynchronous."""
        source, mask, target = (tensor.pin_memory() for tensor in self[:3])
        return Batch(source, mask, target, words=None if self.words is None else self.words.pin_memory())

    @property
    def graph_key(self) -> tuple[Any, ...]:
        """What batches must have in common for one CUDA graph of a training step to serve them all."""
        return self.source.shape, self.target.shape

    def with_buffers(self, source: Tensor, target: Tensor) -> Batch:
        """The same batch in the static input buffers of a CUDA graph; the mask is computed inside the graph."""
        return Batch(source, source_mask(source), target)


def pad_tokens(rows: Rows, width: int | None = None) -> Tensor:
    """Append <eos> to every row of token ids and pad all to one width: (B, S)."""
    width = width or max(len(row) for row in rows) + 1
    out = np.full((len(rows), width), PAD, dtype=np.int64)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
        out[index, len(row)] = EOS
    return torch.from_numpy(out)


def source_mask(source: Tensor) -> Tensor:
    """True where a source is not padding: tokens other than <pad>, numbers other than NaN, frames other than NaN or −1.

    Pictures (uint8) have no padding.
    """
    if source.dtype == torch.uint8:
        return torch.ones(source.shape[:2], dtype=torch.bool, device=source.device)
    if source.dtype == torch.int16:
        return source[:, :, 0] >= 0
    if source.is_floating_point():
        return ~(source[:, :, 0] if source.dim() == 3 else source).isnan()
    return source != PAD


def batch_of(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]] | None = None) -> Batch:
    """A batch of token rows in memory; without targets for prediction."""
    source = pad_tokens(sources)
    target = pad_tokens(targets) if targets is not None else source.new_empty(len(sources), 0)
    return Batch(source, source != PAD, target)


def round_up_lengths(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Round lengths up to a grid with four steps per octave: few different shapes for about 6 % padding."""
    lengths = np.maximum(lengths, 1)
    step = 2 ** np.maximum(np.ceil(np.log2(lengths)).astype(np.int64) - 3, 0)
    out: NDArray[np.int64] = -(-lengths // step) * step
    return out
