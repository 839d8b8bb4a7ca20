"""Which target tokens translate which source tokens: IBM model 1 (Brown et al. 1993) by expectation maximisation.

A link is a source and a target token of one pair. Links are many, different ones far fewer: every round reads each link
as the number of its pair of tokens, so that a round is a few passes over numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.store import TokenStore

ROUNDS = 5  # the chances of a word's first few translations hardly move after these
TOGETHER = 2048  # pairs read at a time


class Lexicon(NamedTuple):
    """Three columns, sorted by source token: sources, targets and p(target | source)."""

    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    chances: NDArray[np.float64]

    def likeliest(self, vocabulary: int, count: int, filler: int, without: Sequence[int] = ()) -> NDArray[np.int64]:
        """For every source token the `count` most probable target tokens but for some: (V, count), filled up."""
        order = np.lexsort((self.targets, -self.chances, self.sources))
        order = order[~np.isin(self.targets[order], np.array(without, np.int64))]
        sources, targets = self.sources[order], self.targets[order]
        first = np.searchsorted(sources, sources)  # where the rows of each one's source token begin
        place = np.arange(len(sources)) - first
        kept = (place < count) & (sources < vocabulary)
        table = np.full((vocabulary, count), filler, np.int64)
        table[sources[kept], place[kept]] = targets[kept]
        return table


def _links(
    store: TokenStore, rows: Sequence[int] | NDArray[np.int64], nothing: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Some pairs at a time: a number for every link, source · 2³² + target, and how many share each target place.

    Every target place may also come from nothing, so that function words need not spoil the chances of others.
    """
    for begin in range(0, len(rows), TOGETHER):
        part = rows[begin : begin + TOGETHER]
        keys, sizes = [], []
        for source, target in zip(store.source.rows(part), store.target.rows(part), strict=True):
            read = np.append(source.astype(np.int64), nothing) << 32
            keys.append((target.astype(np.int64)[:, None] + read).ravel())
            sizes.append(np.full(len(target), len(read)))
        yield np.concatenate(keys), np.concatenate(sizes)


def learn_lexicon(store: TokenStore, source_vocabulary: int, pairs: int, rounds: int = ROUNDS) -> Lexicon:
    """From at most so many pairs of token rows, evenly spread over the store."""
    rows = np.unique(np.linspace(0, len(store) - 1, min(pairs, len(store))).astype(np.int64))
    nothing = source_vocabulary
    known = np.unique(np.concatenate([np.unique(keys) for keys, _ in _links(store, rows, nothing)]))
    parts = [
        (np.searchsorted(known, keys).astype(np.int32), sizes.astype(np.int32))
        for keys, sizes in _links(store, rows, nothing)
    ]
    sources, targets = known >> 32, known & (2**32 - 1)
    chances = np.ones(len(known))
    for _ in range(rounds):
        counts = np.zeros(len(known))
        for links, sizes in parts:
            shares = chances[links]
            sums = np.add.reduceat(shares, np.concatenate([[0], np.cumsum(sizes[:-1])])) if len(sizes) else shares
            counts += np.bincount(links, shares / np.repeat(sums, sizes), len(known))
        chances = counts / np.bincount(sources, counts)[sources]
    return Lexicon(sources, targets, chances)
