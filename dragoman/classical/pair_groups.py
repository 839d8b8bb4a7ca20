"""Sentence pairs in groups of one source length, as padded arrays for word alignment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.classical.rows import Bools, Floats, Ints, Ragged
from dragoman.scoring.symmetrization import LinkRows

CELLS = 250_000  # links handled at a time: few enough for the processor's cache


class Group(NamedTuple):
    """Pairs whose sources have one length S, sorted by the length of their targets."""

    indices: Ints  # (N,)
    links: NDArray[np.int32]  # (T, S+1, N) numbers of links, the empty word first; the last number is for padding
    lengths: Ints  # (N,) of the targets

    @property
    def real(self) -> Bools:
        """(T, N), True = a target word."""
        return np.arange(len(self.links))[:, None] < self.lengths

    @property
    def first(self) -> Ints:
        """For every target word the first pair that has it: (T,)."""
        return np.searchsorted(self.lengths, np.arange(len(self.links)), "right")

    def most_probable(self, posterior: Floats) -> LinkRows:
        """Each target word with its most probable source word, unless that is the empty one."""
        best = posterior.argmax(1)  # (T, N); of padding 0
        targets, rows = np.nonzero(best)
        return LinkRows(self.indices[rows], best[targets, rows] - 1, targets)

    def probable(self, posterior: Floats, threshold: float) -> LinkRows:
        """All links that are at least so probable."""
        targets, sources, rows = np.nonzero(posterior[:, 1:] >= threshold)
        return LinkRows(self.indices[rows], sources, targets)


def by_source_length(sources: Ragged, targets: Ragged, indices: Ints) -> list[Ints]:
    """The indices of pairs with sources of one length, each sorted by the length of its target."""
    order = indices[np.lexsort((indices, targets.lengths[indices], sources.lengths[indices]))]
    return np.split(order, np.flatnonzero(np.diff(sources.lengths[order])) + 1)


def padded_groups(sources: Ragged, targets: Ragged, indices: Ints) -> Iterator[tuple[Ints, Ints, Ints, Ints]]:
    """Pairs by source length: indices (N,), sources (S+1, N), the empty word first, targets (T, N), lengths (N,).

    Padding of targets is −1.
    """
    for same in by_source_length(sources, targets, indices):
        first = 0
        while first < len(same):
            width = int(sources.lengths[same[first]]) + 1
            count = max(1, CELLS // (width * max(1, int(targets.lengths[same[min(first + 64, len(same) - 1)]]))))
            some = same[first : first + count]
            first += count
            left, right = sources.take(some), targets.take(some)
            rows = np.zeros((width, len(some)), np.int64)
            rows[1:] = left.flat.reshape(len(some), -1).T
            yield some, rows, np.ascontiguousarray(right.padded().T), right.lengths
