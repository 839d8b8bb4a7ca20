"""Rows of different lengths in flat arrays, and places of keys in sorted arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.data import Column, FeatureRows

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
CHUNK = 1 << 16
ROUNDS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)  # odd multipliers

Columns = TypeVar("Columns", bound=tuple[Any, ...])  # a NamedTuple of arrays with one entry per row, and lists of them


def take_rows(columns: Columns, rows: Ints) -> Columns:
    parts = ([column[rows] for column in part] if isinstance(part, list) else part[rows] for part in columns)
    return type(columns)(*parts)


def join_rows(tables: Sequence[Columns]) -> Columns:
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
    return Ragged.of_column(store.source), Ragged.of_column(store.target)


def offsets_of(lengths: Any) -> Ints:
    """The borders of rows of these lengths."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


class Ragged:
    """Rows of integers: row i is flat[offsets[i]:offsets[i+1]]."""

    def __init__(self, flat: NDArray[Any], offsets: Ints) -> None:
        self.flat, self.offsets = flat, offsets

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], dtype: Any = np.int32) -> Ragged:
        offsets = offsets_of([len(row) for row in rows])
        return cls(np.fromiter((token for row in rows for token in row), dtype, int(offsets[-1])), offsets)

    @classmethod
    def of_rows(cls, rows: Sequence[NDArray[Any]]) -> Ragged:
        """Rows that are given as arrays."""
        flat = np.concatenate(rows).astype(np.int32) if len(rows) else np.empty(0, np.int32)
        return cls(flat, offsets_of([len(row) for row in rows]))

    @classmethod
    def of_column(cls, column: Column | FeatureRows) -> Ragged:
        assert isinstance(column, Column)
        offsets = offsets_of(column.lengths())
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

    def places(self) -> dict[tuple[int, ...], int]:
        """The place of every row; of equal ones the last."""
        return {row: index for index, row in enumerate(self)}

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
        return Ragged(numbers[self.flat], self.offsets)

    def take(self, rows: Ints) -> Ragged:
        lengths = self.lengths[rows]
        offsets = offsets_of(lengths)
        places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) + np.repeat(self.offsets[rows], lengths)
        return Ragged(self.flat[places], offsets)


def by_source_length(sources: Ragged, targets: Ragged, indices: Ints) -> list[Ints]:
    """The indices of pairs with sources of one length, each sorted by the length of its target."""
    order = indices[np.lexsort((indices, targets.lengths[indices], sources.lengths[indices]))]
    return np.split(order, np.flatnonzero(np.diff(sources.lengths[order])) + 1)


class KeyIndex:
    """Places of keys in a sorted array: a hash table over different keys, built and read by whole arrays.

    It needs a few random reads per key, where a binary search needs twenty.
    Round r tries to put every key that has no slot yet into slot (key · multiplier r) >> shift. Of several keys one
    wins; the others go on to the next round, and those that never win are sought by binary search. A key whose slot is
    empty is not there: it would have won the slot.
    """

    def __init__(self, keys: Ints) -> None:
        self.keys = keys
        bits = max(4, int(2 * len(keys)).bit_length())
        self.shift = np.uint64(64 - bits)
        self.slots = np.full(1 << bits, -1, np.int32)
        left = np.arange(len(keys), dtype=np.int32)
        for number in range(len(ROUNDS)):
            slots = self._slots(keys[left], number)
            free = self.slots[slots] < 0
            self.slots[slots[free]] = left[free]
            left = left[self.slots[slots] != left]
        self.rest = left  # sorted, as the keys are

    def _slots(self, keys: Ints, number: int) -> Ints:
        return (keys.view(np.uint64) * np.uint64(ROUNDS[number]) >> self.shift).view(np.int64)

    def find(self, wanted: Ints) -> NDArray[np.int32]:
        """The places of wanted keys; the number of all keys for those that are not there."""
        flat = np.ascontiguousarray(wanted).ravel()
        if not len(self.keys):
            return np.zeros(wanted.shape, np.int32)
        places = self.slots.take(self._slots(flat, 0))
        same_key = self.keys.take(places, mode="clip") == flat  # the slot of the first key is not empty
        out = np.where(same_key, places, np.int32(len(self.keys)))
        pending = np.flatnonzero((places >= 0) & ~same_key)
        for number in range(1, len(ROUNDS)):
            keys_left = flat[pending]
            places = self.slots.take(self._slots(keys_left, number))
            same_key = self.keys.take(places, mode="clip") == keys_left
            out[pending[same_key]] = places[same_key]
            pending = pending[(places >= 0) & ~same_key]
        if len(self.rest) and len(pending):
            keys = self.keys[self.rest]
            places = np.minimum(np.searchsorted(keys, flat[pending]), len(keys) - 1)
            same = keys[places] == flat[pending]
            out[pending[same]] = self.rest[places[same]]
        return out.reshape(wanted.shape)


def distinct(values: Ints) -> Ints:
    """The different values, sorted; faster than np.unique, which hashes them first."""
    ordered = np.sort(values, axis=None)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered
