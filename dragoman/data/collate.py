"""The sides of batches that are no rows of tokens: labels, numbers, tags, two texts apart, series, frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.data.batching import Rows, TokenRows, padded, rounded
from dragoman.data.tokenizers.tokenizer import EOS

NO_TAG = -1  # pads rows of tags


class Scalars:
    """One label or number a row: (B, 1)."""

    def __init__(self, dtype: torch.dtype = torch.int64) -> None:
        self.dtype = dtype

    def cells(self, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        """One, as stored."""
        return lengths

    terms = cells

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        """(B, 1)."""
        return torch.tensor([[row[0]] for row in rows], dtype=self.dtype)

    def example(self, rows: int, width: int) -> Tensor:
        """Zeros."""
        return torch.zeros(rows, 1, dtype=self.dtype)


class Tags:
    """Tags, then the place of each word's first token: rows of 2n numbers become (B, 2, W).

    Tags are padded with −1, places with 0. Without targets the tags of real words are 0 and mean nothing.
    """

    def cells(self, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        """Words."""
        return lengths // 2

    terms = cells

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        """(B, 2, W)."""
        width = width or max(len(row) // 2 for row in rows)
        out = np.zeros((len(rows), 2, width), dtype=np.int64)
        out[:, 0] = NO_TAG
        for place, row in enumerate(rows):
            words = len(row) // 2
            out[place, 0, :words] = row[:words]
            out[place, 1, :words] = row[words:]
        return torch.from_numpy(out)

    def example(self, rows: int, width: int) -> Tensor:
        """Words that all begin at the first token."""
        return torch.zeros(rows, 2, width, dtype=torch.int64)


class TextsApart(TokenRows):
    """Two texts stored with a separator between them, side by side in a batch: (B, 2, S), each ending in <eos>."""

    def __init__(self, separator: int) -> None:
        self.separator = separator

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        """(B, 2, S); S follows from the longer text, which the stored length does not tell."""
        parts: list[Any] = []
        for row in rows:
            whole = np.asarray(row, dtype=np.int64)
            cut = int(np.flatnonzero(whole == self.separator)[0])
            parts += [whole[:cut], whole[cut + 1 :]]
        if width is not None:
            longest = np.array([max(len(part) for part in parts) + 1])
            width = min(int(rounded(longest)[0]), width)
        return padded(parts, width).view(len(rows), 2, -1)

    def example(self, rows: int, width: int) -> Tensor:
        """The larger of two texts may be nearly all."""
        return super().example(2 * rows, width).view(rows, 2, -1)


class TextsEnded(TokenRows):
    """Two texts stored with a separator between them, as one row in which <eos> ends each of them."""

    def __init__(self, separator: int) -> None:
        self.separator = separator

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        """(B, S)."""
        out = padded(rows, width)
        return out.masked_fill(out == self.separator, EOS)


class Series:
    """Numbers: (B, S), padded with NaN."""

    def cells(self, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        """As many as stored: a series has no <eos>."""
        return lengths

    terms = cells

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        """(B, S)."""
        out = np.full((len(rows), width or max(len(row) for row in rows)), np.nan, dtype=np.float32)
        for place, row in enumerate(rows):
            out[place, : len(row)] = row
        return torch.from_numpy(out)

    def example(self, rows: int, width: int) -> Tensor:
        """Zeros."""
        return torch.zeros(rows, width)


class Frames:
    """Rows of features as they are stored: (B, T, F).

    What is beyond the end of a row is NaN, or −1 where features are bytes, which then are 16 bits wide. The model makes
    floats of them, so that little is copied to it.
    """

    def __init__(self, features: int, dtype: str) -> None:
        self.features, self.dtype = features, dtype

    def cells(self, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        """As many as stored: frames have no <eos>."""
        return lengths

    terms = cells

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        """(B, T, F)."""
        shape = (len(rows), width or max(len(row) for row in rows), self.features)
        out: NDArray[Any] = (
            np.full(shape, -1, np.int16) if self.dtype == "uint8" else np.full(shape, np.nan, np.float32)
        )
        for place, row in enumerate(rows):
            out[place, : len(row)] = row
        return torch.from_numpy(out)

    def example(self, rows: int, width: int) -> Tensor:
        """Zeros."""
        return torch.zeros(rows, width, self.features, dtype=torch.int16 if self.dtype == "uint8" else torch.float32)


class Pictures:
    """Rows of pixels of pictures that are all of one size, as bytes: (B, H, W·3)."""

    def __init__(self, height: int, features: int) -> None:
        self.height, self.features = height, features

    def cells(self, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        """All the same."""
        return lengths

    terms = cells

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        """(B, H, W·3); nothing is to be padded, whatever the grid says."""
        return torch.from_numpy(np.stack([np.asarray(row) for row in rows]))

    def example(self, rows: int, width: int) -> Tensor:
        """Black pictures."""
        return torch.zeros(rows, self.height, self.features, dtype=torch.uint8)
