"""Translation probabilities of tokens by IBM model 1, learned from a store of token rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.classical.rows import Ragged
from dragoman.classical.word_alignment import WordAligner

ITERATIONS = 5  # after these the probabilities of a word's first few translations hardly change


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


def learn_lexicon(store: Any, source_vocabulary: int, pairs: int, iterations: int = ITERATIONS) -> Lexicon:
    """Learn from at most `pairs` pairs of token rows, evenly spread over the store.

    The empty word has the number of the source vocabulary's size.
    """
    rows = np.unique(np.linspace(0, len(store) - 1, min(pairs, len(store))).astype(np.int64))
    left, right = (Ragged.of_rows(column.rows(rows)) for column in (store.source, store.target))
    size = int(right.flat.max(initial=0)) + 1
    aligner = WordAligner("ibm1", iterations)
    aligner.fit_rows(Ragged(left.flat + 1, left.offsets), right, (source_vocabulary + 1, size))
    sources, targets = aligner.owners.astype(np.int64) - 1, aligner.keys % (size + 1)
    order = np.argsort(sources == -1, kind="stable")  # the empty word comes last
    sources = np.where(sources == -1, source_vocabulary, sources)
    return Lexicon(sources[order], targets[order], aligner.table[:-1][order])
