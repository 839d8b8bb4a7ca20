"""A batch of padded rows: sources of an explicit type, targets, and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from dragoman.data.tensors import TensorRecord
from dragoman.data.tokenizers.base import EOS, PAD

Rows = Sequence[Sequence[Any] | NDArray[Any]]


@dataclass(frozen=True)
class Source(TensorRecord):
    """The sources of a batch: padded data, and where they are real. Padding has no meaning in the data itself."""

    data: Tensor  # (B, S), (B, S, F)
    mask: Tensor  # (B, S), True = real

    @classmethod
    def without_padding(cls, data: Tensor) -> Self:
        """Sources of one length."""
        return cls(data, torch.ones(data.shape[:2], dtype=torch.bool, device=data.device))

    def __len__(self) -> int:
        return len(self.data)

    @property
    def device(self) -> torch.device:
        return self.data.device


@dataclass(frozen=True)
class Tokens(Source):
    """Token ids (B, S), each row with <eos>; two texts that are encoded separately: (B, 2, S), mask alike."""

    @classmethod
    def from_padded(cls, data: Tensor) -> Self:
        """Rows that are padded with <pad>."""
        return cls(data, data != PAD)

    @classmethod
    def without_padding(cls, data: Tensor) -> Self:
        return cls(data, torch.ones_like(data, dtype=torch.bool))


@dataclass(frozen=True)
class Frames(Source):
    """Feature frames (B, S, F) of recordings or text lines, in the dtype of their store; models convert to float."""


@dataclass(frozen=True)
class Numbers(Source):
    """Series of numbers (B, S), several series (B, S, C); a missing value is NaN."""


@dataclass(frozen=True)
class Pictures(Source):
    """Pictures of one size as bytes, (B, H, W·3)."""


@dataclass(frozen=True)
class Batch(TensorRecord):
    """Sources and targets as padded rows; rows of tokens end in <eos>."""

    source: Source
    target: Tensor  # (B, T), or as the task's collator makes it
    copies: Tensor | None = None  # (B, S): 1 + j at a token that the target vocabulary lacks, its copy j; 0: none
    words: Tensor | None = None  # (K,): the target words that the softmax of training compares; None: all

    def padded(self, rows: int, length: int) -> Batch:
        """The sources of a batch of tokens, padded to a shape: columns of padding, then copies of its first source.

        A decoder reads nothing else of a batch, so the fields of training are left out.
        """
        columns = length - self.source.data.shape[1]
        data, copies = F.pad(self.source.data, (0, columns), value=PAD), self.copies
        batch = replace(
            self,
            source=replace(self.source, data=data, mask=F.pad(self.source.mask, (0, columns))),
            target=self.target.new_empty(len(data), 0),
            copies=None if copies is None else F.pad(copies, (0, columns)),
            words=None,
        )
        missing = rows - len(data)
        return batch.map(lambda one: torch.cat([one, one[:1].expand(missing, *one.shape[1:])])) if missing else batch


class TokensWithCopies(list[int]):
    """The token ids of a source, and for each of them the number of its copy as `Batch.copies` has it."""

    def __init__(self, tokens: Sequence[int], copies: Sequence[int]) -> None:
        super().__init__(tokens)
        self.copies = copies


def pad_tokens(rows: Rows, width: int | None = None) -> Tensor:
    """Append <eos> to every row of token ids and pad all to one width: (B, S)."""
    width = width or max(len(row) for row in rows) + 1
    out = np.full((len(rows), width), PAD, dtype=np.int64)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
        out[index, len(row)] = EOS
    return torch.from_numpy(out)


def pad_copies(rows: Rows, width: int) -> Tensor:
    """The numbers of copies, 0 on padding: (B, S)."""
    out = np.zeros((len(rows), width), dtype=np.int64)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
    return torch.from_numpy(out)


def token_batch(source: Tensor, target: Tensor | None = None) -> Batch:
    """A batch of token rows that are padded already; without targets for prediction."""
    return Batch(Tokens.from_padded(source), source.new_empty(len(source), 0) if target is None else target)


def copies_of(sources: Rows, width: int) -> Tensor | None:
    """The copies of rows that have them."""
    copies = [row.copies for row in sources if isinstance(row, TokensWithCopies)]
    assert len(copies) in (0, len(sources)), "either all rows of a batch have copies or none"
    return pad_copies(copies, width) if copies else None


def batch_of(sources: Rows, targets: Rows | None = None) -> Batch:
    """A batch of token rows in memory; without targets for prediction."""
    batch = token_batch(pad_tokens(sources), None if targets is None else pad_tokens(targets))
    return replace(batch, copies=copies_of(sources, batch.source.data.shape[1]))


def round_up_lengths(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Round lengths up to a grid with four steps per octave: few different shapes for about 6 % padding."""
    lengths = np.maximum(lengths, 1)
    step = 2 ** np.maximum(np.ceil(np.log2(lengths)).astype(np.int64) - 3, 0)
    out: NDArray[np.int64] = -(-lengths // step) * step
    return out
