"""Counting of n-grams in fixed memory: sorted runs of a block of text each, merged from temporary files.

An n-gram is stored as a number: its place among the sorted n-grams of its order. Its key is the place of its first
n − 1 tokens times the size of the vocabulary plus its last token, so that all continuations of a context are
neighbours. Unigrams are token ids themselves.

Memory beside the blocks holds four bytes for every n-gram of one order, less than the model itself takes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.classical.rows import Ints, Ragged, distinct
from dragoman.data import Column
from dragoman.data.tokenizers import EOS, PAD, SOS

CHUNK = 1 << 20  # tokens or n-grams handled at a time
SMALLEST = 4096  # n-grams that are read of a run at a time, however many runs there are
IN_MEMORY = 1 << 20  # bytes of a spool that are not written to a file
ROWS = 1 << 16  # whose offsets are read at a time


class ArraySpool:
    """An array that is appended to and read in blocks; a long one lies in a temporary file."""

    def __init__(self, dtype: Any) -> None:
        self.dtype, self.size = np.dtype(dtype), 0
        self._file = SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 (the spool owns it)
        self.close = weakref.finalize(self, self._file.close)  # frees the file, at the latest with the spool

    def __len__(self) -> int:
        return self.size

    def append(self, values: NDArray[Any]) -> None:
        self._file.seek(0, 2)
        self._file.write(np.ascontiguousarray(values, self.dtype).data)
        self.size += len(values)

    def read(self, first: int, end: int) -> NDArray[Any]:
        """The values first … end − 1, or fewer at the end."""
        self._file.seek(first * self.dtype.itemsize)
        buffer = bytearray(max(0, min(end, self.size) - first) * self.dtype.itemsize)
        self._file.readinto(buffer)
        return np.frombuffer(buffer, self.dtype)

    def blocks(self) -> Iterator[NDArray[Any]]:
        for first in range(0, self.size, CHUNK):
            yield self.read(first, first + CHUNK)


class Counted(NamedTuple):
    """The n-grams of one order as they were counted, sorted by key."""

    keys: ArraySpool
    counts: ArraySpool  # occurrences, or in lower orders the number of different tokens before the n-gram
    suffixes: ArraySpool  # the place of the last n − 1 tokens in the order below

    @classmethod
    def empty(cls) -> Counted:
        return cls(ArraySpool(np.int64), ArraySpool(np.int32), ArraySpool(np.int32))

    def append(self, *columns: NDArray[Any]) -> None:
        for spool, column in zip(self, columns, strict=True):
            spool.append(column)

    def close(self) -> None:
        for spool in self:
            spool.close()


@dataclass
class SortedRun:
    """The n-grams of a block of text: different keys, sorted, and for every position the one that ends there."""

    ngrams: Counted
    inverse: ArraySpool  # of positions with an n-gram: its place in this run
    places: ArraySpool  # of this run's n-grams: their places among all
    read: int = 0  # how many were read by the merge
    head: tuple[NDArray[Any], ...] = ()  # keys, counts and suffixes that were read but not merged

    def close(self) -> None:
        self.ngrams.close()
        self.inverse.close()
        self.places.close()


def token_blocks(rows: Ragged | Column) -> Iterator[NDArray[Any]]:
    """All rows as <sos> … <eos>, joined; at most CHUNK tokens of text at a time, as a row may be very long."""
    for first in range(0, len(rows), ROWS):
        end = min(first + ROWS, len(rows))
        offsets = rows.offsets(first, end) if isinstance(rows, Column) else rows.offsets[first : end + 1]
        start, stop, borders = int(offsets[0]), int(offsets[-1]), offsets[1:-1]
        yield np.array([SOS])
        for place in range(start, max(stop, start + 1), CHUNK):
            last = min(place + CHUNK, stop)
            tokens = rows.tokens(place, last) if isinstance(rows, Column) else rows.flat[place:last]
            inside = borders[(borders >= place) & ((borders < last) | (last == stop))] - place
            yield np.insert(tokens, np.repeat(inside, 2), np.tile([EOS, SOS], len(inside)))
        yield np.array([EOS])


def count_ngrams(rows: Ragged | Column, vocabulary: int, order: int) -> list[Counted]:
    """The n-grams up to an order. No n-gram spans two rows: <sos> stands only at its start.

    Lower orders count the different tokens before an n-gram; n-grams at the start of a row have none, and keep the
    number of their occurrences.
    """
    stream, totals = ArraySpool(np.int32), np.zeros(vocabulary, np.int64)
    for block in token_blocks(rows):
        stream.append(block)
        totals += np.bincount(block, minlength=vocabulary)
    unigrams = Counted.empty()
    unigrams.keys.append(np.arange(vocabulary))
    unigrams.counts.append(totals)
    counted = [unigrams]
    places = stream  # of the n-gram that ends at each position; −1: it would span two rows
    for n in range(2, order + 1):
        runs = [_run_of(*part) for part in _blocks_of_keys(stream, places, vocabulary)]
        counted.append(_merge(runs))
        new = _new_places(stream, places, runs, vocabulary) if n < order else places
        for run in runs:
            run.close()
        counted[-2] = _with_left_contexts(counted[-2], counted[-1].suffixes, without=(SOS,) if n == 2 else ())
        places = new
    counted[0] = _with_left_contexts(counted[0], ArraySpool(np.int32), without=(PAD, SOS))
    return counted


def _blocks_of_keys(
    stream: ArraySpool, places: ArraySpool, vocabulary: int
) -> Iterator[tuple[Ints, Ints, NDArray[np.int32]]]:
    """Of some positions at a time: those where an n-gram ends, their keys, and the places of one token less there."""
    last = np.array([-1], np.int32)
    for first in range(0, len(stream), CHUNK):
        tokens, own = stream.read(first, first + CHUNK), places.read(first, first + CHUNK)
        before = np.concatenate([last, own[:-1]]).astype(np.int64)
        last = own[-1:]
        ends = np.flatnonzero((before >= 0) & (tokens != SOS))
        yield ends, before[ends] * vocabulary + tokens[ends], own[ends]


def _run_of(ends: Ints, keys: Ints, suffixes: NDArray[np.int32]) -> SortedRun:
    own, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    last = np.empty(len(own), np.int32)
    last[inverse] = suffixes  # the same wherever the n-gram ends
    run = SortedRun(Counted.empty(), ArraySpool(np.int32), ArraySpool(np.int32))
    run.ngrams.append(own, counts, last)
    run.inverse.append(inverse)
    return run


def _merge(runs: Sequence[SortedRun]) -> Counted:
    """All different n-grams of the runs, sorted, with their counts added up; every run gets the places of its own."""
    out, size = Counted.empty(), max(SMALLEST, CHUNK // max(1, len(runs)))
    while True:
        for run in runs:
            if not run.head or not len(run.head[0]):
                run.head = tuple(spool.read(run.read, run.read + size) for spool in run.ngrams)
                run.read += len(run.head[0])
        if not any(len(run.head[0]) for run in runs):
            return out
        more = [run.head[0][-1] for run in runs if run.read < len(run.ngrams.keys)]
        cuts = [int(np.searchsorted(run.head[0], min(more), "right")) if more else len(run.head[0]) for run in runs]
        keys = distinct(np.concatenate([run.head[0][:cut] for run, cut in zip(runs, cuts, strict=True)]))
        counts, suffixes = np.zeros((2, len(keys)), np.int32)
        for run, cut in zip(runs, cuts, strict=True):
            places = np.searchsorted(keys, run.head[0][:cut])
            counts[places] += run.head[1][:cut]
            suffixes[places] = run.head[2][:cut]
            run.places.append(places + len(out.keys))
            run.head = tuple(part[cut:] for part in run.head)
        out.append(keys, counts, suffixes)


def _new_places(stream: ArraySpool, places: ArraySpool, runs: Sequence[SortedRun], vocabulary: int) -> ArraySpool:
    """The place of the n-gram that ends at each position, −1 where none does."""
    out = ArraySpool(np.int32)
    for number, (ends, _, _) in enumerate(_blocks_of_keys(stream, places, vocabulary)):
        run = runs[number]
        size = min(CHUNK, len(stream) - number * CHUNK)
        new = np.full(size, -1, np.int32)
        new[ends] = run.places.read(0, len(run.places))[run.inverse.read(0, len(run.inverse))]
        out.append(new)
    return out


def _with_left_contexts(counted: Counted, suffixes: ArraySpool, without: Sequence[int]) -> Counted:
    """n-grams with the number of different tokens before them, from those of one token more; 0 for some unigrams."""
    left = np.zeros(len(counted.keys), np.int32)
    for block in suffixes.blocks():
        np.add.at(left, block, 1)
    counts = ArraySpool(np.int32)
    for number, block in enumerate(counted.counts.blocks()):
        own = left[number * CHUNK : number * CHUNK + len(block)]
        numbers = np.where(own > 0, own, block)
        if number == 0:
            numbers[list(without)] = 0
        counts.append(numbers)
    counted.counts.close()
    return counted._replace(counts=counts)
