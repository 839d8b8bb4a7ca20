"""IBM model 1 (Brown et al. 1993): translation probabilities of tokens, by expectation maximisation.

A link is a source token and a target token of one pair. There are many links but far fewer different ones. Every link
is stored as the index of its pair of tokens, so that an iteration is a few passes over integer arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.store import TokenStore

ITERATIONS = 5  # after these the probabilities of a word's first few translations hardly change
CHUNK = 2048  # pairs read at a time


class Lexicon(NamedTuple):
    """Three columns, sorted by source token: sources, targets and p(target | source)."""

    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    def most_probable(self, vocabulary: int, count: int, filler: int, without: Sequence[int] = ()) -> NDArray[np.int64]:
        """For every source token its `count` most probable target tokens, except `without`: (V, count)."""
        order = np.lexsort((self.targets, -self.probabilities, self.sources))
        order = order[~np.isin(self.targets[order], np.array(without, np.int64))]
        sources, targets = self.sources[order], self.targets[order]
        rank = np.arange(len(sources)) - np.searchsorted(sources, sources)  # among the targets of the same source
        chosen = (rank < count) & (sources < vocabulary)
        table = np.full((vocabulary, count), filler, np.int64)
        table[sources[chosen], rank[chosen]] = targets[chosen]
        return table


def _links(
    store: TokenStore, rows: Sequence[int] | NDArray[np.int64], null: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """For some pairs at a time: a key for every link, source · 2³² + target, and the links of each target position.

    Every target position also has a link to the empty word `null`, which explains function words.
    """
    for start in range(0, len(rows), CHUNK):
        chunk = rows[start : start + CHUNK]
        keys, sizes = [], []
        for source, target in zip(store.source.rows(chunk), store.target.rows(chunk), strict=True):
            sources = np.append(source.astype(np.int64), null) << 32
            keys.append((target.astype(np.int64)[:, None] + sources).ravel())
            sizes.append(np.full(len(target), len(sources)))
        yield np.concatenate(keys), np.concatenate(sizes)


def learn_lexicon(store: TokenStore, source_vocabulary: int, pairs: int, iterations: int = ITERATIONS) -> Lexicon:
    """Learn from at most `pairs` pairs of token rows, evenly spread over the store."""
    rows = np.unique(np.linspace(0, len(store) - 1, min(pairs, len(store))).astype(np.int64))
    null = source_vocabulary
    all_keys = np.unique(np.concatenate([np.unique(keys) for keys, _ in _links(store, rows, null)]))
    chunks = [
        (np.searchsorted(all_keys, keys).astype(np.int32), sizes.astype(np.int32))
        for keys, sizes in _links(store, rows, null)
    ]
    sources, targets = all_keys >> 32, all_keys & (2**32 - 1)
    probabilities = np.ones(len(all_keys))
    for _ in range(iterations):
        counts = np.zeros(len(all_keys))
        for links, sizes in chunks:
            weights = probabilities[links]
            sums = np.add.reduceat(weights, np.concatenate([[0], np.cumsum(sizes[:-1])])) if len(sizes) else weights
            counts += np.bincount(links, weights / np.repeat(sums, sizes), len(all_keys))
        probabilities = counts / np.bincount(sources, counts)[sources]
    return Lexicon(sources, targets, probabilities)
