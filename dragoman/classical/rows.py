"""Rows of different lengths in flat arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.data.store import Column, FeatureRows

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
CHUNK = 1 << 16


Columns = TypeVar("Columns", bound=tuple[Any, ...])  # a NamedTuple of arrays with one entry per row, and lists of them


def take_rows(columns: Columns, rows: Ints) -> Columns:
    """Some rows of all columns."""
    parts = ([column[rows] for column in part] if isinstance(part, list) else part[rows] for part in columns)
    return type(columns)(*parts)


def join_rows(tables: Sequence[Columns]) -> Columns:
    """The rows of several tables below each other."""
    if len(tables) == 1:
        return tables[0]
    parts = (
        [np.concatenate(column) for column in zip(*several, strict=True)]
        if isinstance(several[0], list)
        else np.concatenate(several)
        for several in zip(*tables, strict=True)
    )
    return type(tables[0])(*parts)


def pair_rows(store: Any) -> tuple[Ragged, Ragged]:
    """All sources and all targets of a store of token rows."""
    return Ragged.of_column(store.source), Ragged.of_column(store.target)


class Ragged:
    """Rows of integers: row i is flat[offsets[i]:offsets[i+1]]."""

    def __init__(self, flat: NDArray[Any], offsets: Ints) -> None:
        self.flat, self.offsets = flat, offsets

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], dtype: Any = np.int32) -> Ragged:
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)]).astype(np.int64)
        return cls(np.fromiter((token for row in rows for token in row), dtype, int(offsets[-1])), offsets)

    @classmethod
    def of_rows(cls, rows: Sequence[NDArray[Any]]) -> Ragged:
        """The same rows, given as arrays."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.concatenate(rows).astype(np.int32) if len(rows) else np.empty(0, np.int32)
        return cls(flat, np.concatenate([[0], np.cumsum(lengths)]))

    @classmethod
    def of_column(cls, column: Column | FeatureRows) -> Ragged:
        """All rows of a store's column, in memory."""
        assert isinstance(column, Column)
        offsets = np.concatenate([[0], np.cumsum(column.lengths(), dtype=np.int64)]).astype(np.int64)
        flat = np.empty(int(offsets[-1]), np.int32)
        for first in range(0, len(flat), CHUNK):
            end = min(first + CHUNK, len(flat))
            flat[first:end] = column.tokens(first, end)
        return cls(flat, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> tuple[int, ...]:
        return tuple(self.flat[self.offsets[index] : self.offsets[index + 1]].tolist())

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return (self[index] for index in range(len(self)))

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def padded(self) -> Ints:
        """The rows as an array (N, L); −1 is padding."""
        lengths = self.lengths
        out = np.full((len(self), int(lengths.max(initial=0))), -1, np.int64)
        out[np.arange(out.shape[1]) < lengths[:, None]] = self.flat
        return out

    def mapped(self, numbers: NDArray[Any]) -> Ragged:
        """Every integer replaced by its number."""
        return Ragged(numbers[self.flat], self.offsets)

    def take(self, rows: Ints) -> Ragged:
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) + np.repeat(self.offsets[rows], lengths)
        return Ragged(self.flat[places], offsets)


def by_source_length(sources: Ragged, targets: Ragged, indices: Ints) -> list[Ints]:
    """The indices of pairs with sources of one length, each sorted by the length of its target."""
    order = indices[np.lexsort((indices, targets.lengths[indices], sources.lengths[indices]))]
    return np.split(order, np.flatnonzero(np.diff(sources.lengths[order])) + 1)
