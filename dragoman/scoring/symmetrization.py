"""Symmetrization: the word alignments of both directions combined into one, for many sentence pairs at once.

Grow-diag adds links one after the other, and each decides over the next. Pairs do not depend on each other, so all
pairs take their first step together, then their second one, and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.scoring.alignment import Link, Links

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
METHODS = ("intersection", "union", "grow-diag", "grow-diag-final-and")
NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))  # source, target


class LinkRows(NamedTuple):
    """The links of many sentence pairs as columns."""

    pairs: Ints
    sources: Ints
    targets: Ints

    @classmethod
    def of(cls, rows: Iterable[Iterable[Link]]) -> LinkRows:
        """From the links of every pair, (source, target)."""
        flat = [(pair, source, target) for pair, row in enumerate(rows) for source, target in row]
        return cls(*np.array(flat, np.int64).reshape(-1, 3).T)

    @classmethod
    def joined(cls, several: Sequence[LinkRows]) -> LinkRows:
        none = np.empty(0, np.int64)
        return cls(*(np.concatenate([none, *column]) for column in zip(cls(none, none, none), *several, strict=True)))

    def swapped(self) -> LinkRows:
        return LinkRows(self.pairs, self.targets, self.sources)

    def take(self, rows: Ints) -> LinkRows:
        return LinkRows(self.pairs[rows], self.sources[rows], self.targets[rows])

    def rows(self, count: int) -> Iterator[Links]:
        """The links of every pair, where `count` pairs are sorted by number."""
        links = list(zip(self.sources.tolist(), self.targets.tolist(), strict=True))
        ends = np.searchsorted(self.pairs, np.arange(count), "right").tolist()
        first = 0
        for end in ends:
            yield frozenset(links[first:end])
            first = end


def symmetrize_rows(forward: LinkRows, backward: LinkRows, method: str) -> LinkRows:
    """One alignment of every pair, sorted by pair, source and target; both directions have sources first.

    Grow-diag (Koehn et al. 2003) starts from the intersection and adds neighbours in the union that align a new word.
    Grow-diag-final-and then adds links of either direction between words that are both unaligned.
    """
    state = _Growing(forward, backward, method == "union")
    if method.startswith("grow-diag"):
        state.grow()
    if method == "grow-diag-final-and":
        state.finish()
    return state.union.take(np.flatnonzero(state.linked))


def symmetrize_links(forward: Links, backward: Links, method: str) -> Links:
    """The symmetrised links of one pair."""
    (links,) = symmetrize_rows(LinkRows.of([forward]), LinkRows.of([backward]), method).rows(1)
    return links


class _Growing:
    """The union of both directions, and what of it is linked so far: at first the intersection, or all of it."""

    def __init__(self, forward: LinkRows, backward: LinkRows, everything: bool) -> None:
        # A link as one number, counted so that its neighbours have numbers of the same pair.
        both = LinkRows.joined([forward, backward])
        height, width = int(both.sources.max(initial=0)) + 3, int(both.targets.max(initial=0)) + 3
        self.directions = [np.sort((pairs * height + sources + 1) * width + targets + 1)
                           for pairs, sources, targets in (forward, backward)]  # fmt: skip
        keys = np.sort(np.concatenate(self.directions))
        again = np.append(keys[1:] == keys[:-1], False)  # of a link of both directions the first
        first = np.append(True, ~again[:-1])[: len(keys)]
        self.keys, self.width = keys[first], width
        self.linked = np.ones(len(self.keys), bool) if everything else again[first]
        words, targets = np.divmod(self.keys, width)  # of source words the number is that of pair and word
        pairs, sources = np.divmod(words, height)
        self.union = LinkRows(pairs, sources - 1, targets - 1)
        self.words = words, pairs * width + targets
        self.aligned = [np.zeros(int(side.max(initial=-1)) + 1, bool) for side in self.words]
        self.add(np.flatnonzero(self.linked))

    def add(self, links: Ints) -> None:
        self.linked[links] = True
        for words, aligned in zip(self.words, self.aligned, strict=True):
            aligned[words[links]] = True

    def both_aligned(self, links: Ints) -> Bools:
        return np.asarray(self.aligned[0][self.words[0][links]] & self.aligned[1][self.words[1][links]])

    def any_aligned(self, links: Ints) -> Bools:
        return np.asarray(self.aligned[0][self.words[0][links]] | self.aligned[1][self.words[1][links]])

    def grow(self) -> None:
        """Add neighbours of links, in the order of the links' targets and sources, until no pair changes."""
        links, near = self.neighbours()
        changed = np.ones(int(self.union.pairs.max(initial=-1)) + 1, bool)
        while changed.any():
            kept = changed[self.union.pairs[links]] & ~self.both_aligned(near)  # which no later step would undo
            links, near = links[kept], near[kept]
            changed[:] = False
            for step in steps(self.union.pairs[links]):
                new = near[step][self.linked[links[step]] & ~self.both_aligned(near[step])]
                self.add(new)
                changed[self.union.pairs[new]] = True

    def neighbours(self) -> tuple[Ints, Ints]:
        """Links of the union, and neighbours that are in the union but not linked; sorted by pair, target, source."""
        others = np.flatnonzero(~self.linked & ~self.both_aligned(np.arange(len(self.keys))))
        columns: list[tuple[Ints, Ints]] = []
        for down, right in NEIGHBOURS:
            wanted = self.keys[others] - (down * self.width + right)
            places = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
            same = self.keys[places] == wanted
            columns.append((places[same], others[same]))
        links, near = (np.concatenate(column) for column in zip(*columns, strict=True))
        height = int(self.union.sources.max(initial=0)) + 1
        order = np.argsort(self.words[1][links] * height + self.union.sources[links], kind="stable")
        return links[order], near[order]

    def finish(self) -> None:
        """Add links between unaligned words, first those of the forward direction."""
        links = np.concatenate([np.searchsorted(self.keys, direction) for direction in self.directions])
        links = links[~self.any_aligned(links)]
        links = links[np.argsort(self.union.pairs[links], kind="stable")]
        for step in steps(self.union.pairs[links]):
            self.add(links[step][~self.any_aligned(links[step])])


def steps(pairs: Ints) -> Iterator[Ints]:
    """The first row of every pair, then every second row, and so on; rows are sorted by pair."""
    rank = np.arange(len(pairs)) - np.searchsorted(pairs, pairs)
    order = np.argsort(rank, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(rank[order])) + 1)
