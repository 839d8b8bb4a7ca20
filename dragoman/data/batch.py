"""A batch of padded rows: sources of an explicit type, targets, and padding.

Every tensor of a batch moves in one call, so that no field can be left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.data.rows import Rows, TokensWithCopies, pad_rows
from dragoman.data.tokenizers.base import EOS, PAD

# A field with this metadata stays where it is: its owner keeps its tensors on the device and updates them in place.
STAYS = {"stays": True}
CONSTANTS = (type(None), bool, int, float, str)


def _moving(record: Any) -> list[Field[Any]]:
    return [field for field in fields(record) if not field.metadata.get("stays")]


def map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to every tensor of nested tuples and dataclasses; plain constants stay as they are."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, tuple):
        branches = [map_tensors(branch, change) for branch in tree]
        return type(tree)(*branches) if hasattr(tree, "_fields") else tuple(branches)
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{field.name: map_tensors(getattr(tree, field.name), change) for field in _moving(tree)})
    if isinstance(tree, CONSTANTS):
        return tree
    raise TypeError(f"found {type(tree).__name__}, expected tensors in tuples and dataclasses")


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """Every tensor of nested tuples and dataclasses, always in the same order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple):
        for branch in tree:
            yield from tensors_of(branch)
    elif is_dataclass(tree):
        for field in _moving(tree):
            yield from tensors_of(getattr(tree, field.name))
    elif not isinstance(tree, CONSTANTS):
        raise TypeError(f"found {type(tree).__name__}, expected tensors in tuples and dataclasses")


def shapes_of(tree: Any) -> Any:
    """The types, shapes and constants of nested tuples and dataclasses, as a value that can be a key."""
    if isinstance(tree, Tensor):
        return tree.dtype, tree.shape
    if isinstance(tree, tuple):
        return tuple(shapes_of(branch) for branch in tree)
    if is_dataclass(tree):
        return type(tree), *(shapes_of(getattr(tree, field.name)) for field in _moving(tree))
    return tree


class TensorRecord:
    """A base for frozen dataclasses of tensors. What moves follows from the fields, so a new field moves too."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        out: Self = map_tensors(self, change)
        return out

    def to(self, device: torch.device) -> Self:
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Self:
        """This record in page-locked memory, from which copies to a GPU are asynchronous."""
        return self.map(Tensor.pin_memory)

    @property
    def graph_key(self) -> Any:
        """What records must have in common for one CUDA graph to serve them all."""
        return shapes_of(self)

    def buffers(self, device: torch.device) -> Self:
        """A copy on a device, whose memory a CUDA graph may keep reading."""
        return self.map(lambda tensor: tensor.to(device, copy=True))

    def fill(self, other: Self) -> None:
        """Overwrite these buffers with another record of the same `graph_key`."""
        for own, new in zip(tensors_of(self), tensors_of(other), strict=True):
            own.copy_(new.pin_memory() if own.is_cuda and not new.is_cuda else new, non_blocking=True)


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
        return (
            batch.map(lambda rows: torch.cat([rows, rows[:1].expand(missing, *rows.shape[1:])])) if missing else batch
        )


def pad_tokens(rows: Rows, width: int | None = None) -> Tensor:
    """Append <eos> to every row of token ids and pad all to one width: (B, S)."""
    lengths = [len(row) for row in rows]
    out = pad_rows(rows, width or max(lengths) + 1)
    out[np.arange(len(rows)), lengths] = EOS
    return torch.from_numpy(out)


def token_batch(source: Tensor, target: Tensor | None = None) -> Batch:
    """A batch of token rows that are padded already; without targets for prediction."""
    return Batch(Tokens.from_padded(source), source.new_empty(len(source), 0) if target is None else target)


def copies_of(sources: Rows, width: int, copies: Rows | None = None) -> Tensor | None:
    """The copies, 0 on padding: (B, S); by default those of rows that have them."""
    if copies is None:
        copies = [row.copies for row in sources if isinstance(row, TokensWithCopies)]
    assert len(copies) in (0, len(sources)), "either all rows of a batch have copies or none"
    return torch.from_numpy(pad_rows(copies, width)) if copies else None


def batch_of(sources: Rows, targets: Rows | None = None) -> Batch:
    """A batch of token rows in memory; without targets for prediction."""
    batch = token_batch(pad_tokens(sources), None if targets is None else pad_tokens(targets))
    return replace(batch, copies=copies_of(sources, batch.source.data.shape[1]))
