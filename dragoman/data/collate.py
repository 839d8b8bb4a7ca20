"""Collators: rows of a store → a batch. Each column (source, target) has a collator for its kind of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.data.batch import Batch, Frames, Numbers, Pictures, Source, Tokens, copies_of, pad_tokens
from dragoman.data.rows import NO_TAG, Rows, pad_rows, round_up_lengths
from dragoman.data.tokenizers.base import EOS, SPECIALS

Lengths = NDArray[np.int32]
LossTerms = Callable[[Lengths, Lengths], NDArray[Any]]


class ColumnCollator(ABC):
    """How the rows of one column of a store become a tensor."""

    def padded_lengths(self, lengths: Lengths) -> Lengths:
        """The width in a batch of rows of these stored lengths."""
        return lengths

    def loss_terms(self, lengths: Lengths) -> Lengths:
        """How many terms a target row of each stored length contributes to the loss."""
        return self.padded_lengths(lengths)

    @abstractmethod
    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        """The rows as one tensor, padded to `width`, or to the longest row."""

    @abstractmethod
    def dummy_row(self, width: int) -> Any:
        """A row that is so wide in a batch."""

    def dummy(self, rows: int, width: int) -> Tensor:
        """A tensor such as `pad` makes, for measuring memory and speed."""
        return self.pad([self.dummy_row(width)] * rows)


class SourceCollator(ColumnCollator):
    """A column that a model can read as its source."""

    kind: type[Source]

    def source(self, rows: Rows, width: int | None = None) -> Source:
        """The rows as `pad` makes them, and their mask."""
        data = self.pad(rows, width)
        lengths = self.padded_lengths(np.fromiter(map(len, rows), np.int32, len(rows)))
        return self.kind(data, torch.from_numpy(np.arange(data.shape[1]) < lengths[:, None]))


class TokenCollator(SourceCollator):
    """Token rows with <eos> appended: (B, S)."""

    kind = Tokens

    def source(self, rows: Rows, width: int | None = None) -> Source:
        return Tokens.from_padded(self.pad(rows, width))

    def padded_lengths(self, lengths: Lengths) -> Lengths:
        return lengths + 1

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        return pad_tokens(rows, width)

    def dummy_row(self, width: int) -> Any:
        return [len(SPECIALS)] * (width - 1)


class ScalarCollator(ColumnCollator):
    """K labels or numbers in every row: (B, K)."""

    def __init__(self, dtype: torch.dtype = torch.int64) -> None:
        self.dtype = dtype

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        return torch.tensor(np.stack([np.asarray(row) for row in rows]), dtype=self.dtype)

    def dummy_row(self, width: int) -> Any:
        return [0]


class TagCollator(ColumnCollator):
    """Rows of n tags and n positions of each word's first token: (B, 2, W).

    Tags are padded with −1, positions with 0. For prediction the tags of real words are 0 and have no meaning.
    """

    def padded_lengths(self, lengths: Lengths) -> Lengths:
        return lengths // 2

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        width = width or max(len(row) // 2 for row in rows)
        out = np.zeros((len(rows), 2, width), dtype=np.int64)
        out[:, 0] = NO_TAG
        for index, row in enumerate(rows):
            words = len(row) // 2
            out[index, 0, :words] = row[:words]
            out[index, 1, :words] = row[words:]
        return torch.from_numpy(out)

    def dummy_row(self, width: int) -> Any:
        return [0] * (2 * width)


class SeparateTextsCollator(TokenCollator):
    """Two texts, stored as one row with <sep> between, for an encoder that reads each alone: (B, 2, S)."""

    def __init__(self, separator: int) -> None:
        self.separator = separator

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        """(B, 2, S), both texts with <eos>; S follows from the longest text, so it may be less than `width`."""
        texts: list[Any] = []
        for row in rows:
            tokens = np.asarray(row, dtype=np.int64)
            cut = int(np.flatnonzero(tokens == self.separator)[0])
            texts += [tokens[:cut], tokens[cut + 1 :]]
        if width is not None:
            longest = np.array([max(len(text) for text in texts) + 1])
            width = min(int(round_up_lengths(longest)[0]), width)
        return pad_tokens(texts, width).view(len(rows), 2, -1)

    def dummy_row(self, width: int) -> Any:
        """Both texts of the full width, since the longer text may be nearly the whole row."""
        text = super().dummy_row(width)
        return [*text, self.separator, *text]


class ConcatenatedTextsCollator(TokenCollator):
    """Two texts, stored as one row with <sep> between, for an encoder that reads <eos> in its place: (B, S)."""

    def __init__(self, separator: int, ends: int = 1) -> None:
        """`ends`: how many <eos> are between two texts."""
        self.separator, self.ends = separator, ends

    def padded_lengths(self, lengths: Lengths) -> Lengths:
        """One more for the last <eos>, and those that <sep> has no room for."""
        return lengths + self.ends

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        if self.ends > 1:
            arrays = [np.asarray(row, dtype=np.int64) for row in rows]
            rows = [np.repeat(row, np.where(row == self.separator, self.ends, 1)) for row in arrays]
        out = pad_tokens(rows, width)
        return out.masked_fill(out == self.separator, EOS)


class SeriesCollator(SourceCollator):
    """Series of numbers: (B, S), of several series (B, S, C)."""

    kind = Numbers

    def __init__(self, channels: int = 1) -> None:
        self.channels = channels

    def padded_lengths(self, lengths: Lengths) -> Lengths:
        return lengths // self.channels

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        width = width or max(len(row) for row in rows) // self.channels
        out = pad_rows(rows, width * self.channels, np.float32)
        return torch.from_numpy(out if self.channels == 1 else out.reshape(len(rows), width, self.channels))

    def dummy_row(self, width: int) -> Any:
        return [0.0] * (width * self.channels)


class FrameCollator(SourceCollator):
    """Feature frames: (B, T, F). They keep the dtype of their store, which keeps the copy of bytes to a GPU small."""

    kind = Frames

    def __init__(self, features: int, dtype: str) -> None:
        self.features, self.dtype = features, np.dtype(dtype)

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        width = width or max(len(row) for row in rows)
        return torch.from_numpy(pad_rows(rows, width, self.dtype, (self.features,)))

    def dummy_row(self, width: int) -> Any:
        return np.zeros((width, self.features), self.dtype)


class PictureCollator(SourceCollator):
    """Pictures of one size as bytes: (B, H, W·3)."""

    kind = Pictures

    def __init__(self, height: int, features: int) -> None:
        self.height, self.features = height, features

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        """(B, H, W·3), never padded, whatever `width` says."""
        return torch.from_numpy(np.stack([np.asarray(row) for row in rows]))

    def dummy_row(self, width: int) -> Any:
        return np.zeros((self.height, self.features), np.uint8)


class Collator(NamedTuple):
    """How rows of a store become a batch."""

    source: SourceCollator = TokenCollator()
    target: ColumnCollator = TokenCollator()
    loss_terms: LossTerms | None = None  # from the stored source and target lengths; None: as the target column says

    def collate(
        self,
        sources: Rows,
        targets: Rows | None = None,
        copies: Rows | None = None,
        widths: tuple[int | None, int | None] = (None, None),
    ) -> Batch:
        """A batch of rows; without targets for prediction.

        `copies`: of the sources, if they are not `TokensWithCopies`. `widths`: of source and target, else those of the
        longest rows.
        """
        source = self.source.source(sources, widths[0])
        return Batch(
            source,
            torch.empty(len(sources), 0, dtype=torch.int64) if targets is None else self.target.pad(targets, widths[1]),
            copies_of(sources, source.data.shape[1], copies),
        )

    def dummy(self, rows: int, source: int, target: int) -> Any:
        """A batch with rows of these widths, for measuring memory and speed."""
        sources = self.source.kind.without_padding(self.source.dummy(rows, source))
        return Batch(sources, self.target.dummy(rows, target))


PAIR_COLLATOR = Collator()


def batches_by_length(
    sources: Rows, batch_size: int, collator: Collator = PAIR_COLLATOR, *, longest_first: bool = False
) -> Iterator[tuple[list[int], Batch]]:
    """(indices, batch) of sources of like lengths, shortest first by default; every source is in one batch."""
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]), reverse=longest_first)
    for first in range(0, len(order), batch_size):
        indices = order[first : first + batch_size]
        yield indices, collator.collate([sources[index] for index in indices])
