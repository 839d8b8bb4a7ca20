"""Rows of token ids before they become tensors: as arrays for a store, padded, or with the words that they copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.base import check_interrupted


class FlatRows(NamedTuple):
    """Rows one after the other in one array."""

    values: NDArray[Any]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[Any]], dtype: str) -> FlatRows:
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return cls(np.fromiter(chain.from_iterable(rows), dtype, int(lengths.sum())), lengths)

    def select(self, chosen: NDArray[np.bool_]) -> FlatRows:
        return FlatRows(self.values[np.repeat(chosen, self.lengths)], self.lengths[chosen])


NO_TAG = -1  # pads rows of tags
Rows = Sequence[Sequence[Any] | NDArray[Any]]


class TokensWithCopies(list[int]):
    """The token ids of a source, and for each of them the number of its copy as `Batch.copies` has it."""

    def __init__(self, tokens: Sequence[int], copies: Sequence[int]) -> None:
        super().__init__(tokens)
        self.copies = copies


def pad_rows(rows: Rows, width: int, dtype: Any = np.int64, shape: tuple[int, ...] = ()) -> NDArray[Any]:
    """Rows in an array (B, width, *shape), zeros after their ends."""
    out = np.zeros((len(rows), width, *shape), dtype)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
    return out


def round_up_lengths(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Round lengths up to a grid with four steps per octave: few different shapes for about 6 % padding."""
    lengths = np.maximum(lengths, 1)
    step = 2 ** np.maximum(np.ceil(np.log2(lengths)).astype(np.int64) - 3, 0)
    out: NDArray[np.int64] = -(-lengths // step) * step
    return out


def batches_of_indices(lengths: Sequence[Any], batch_size: int) -> Iterator[list[int]]:
    """Indices of rows of like lengths, shortest first, `batch_size` in a batch."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    for first in range(0, len(order), batch_size):
        check_interrupted()
        yield order[first : first + batch_size]
