"""Many-to-many alignment of two sequences by expectation maximisation (Jiampojamarn et al. 2007; Bisani and Ney 2008).

A pair is cut into chunks, each of one or more source tokens and none or more target tokens. EM learns the probability
of every chunk. All pairs with sources of one length are handled together: a row of their lattices is one array.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.classical.model import Note
from dragoman.classical.rows import Bools, Floats, Ints, Ragged, by_source_length

GROUP = 4096  # pairs handled together
PAIRS = 200_000  # pairs that EM reads at most; all are aligned
FLOOR = 1e-30  # probability of chunks that EM has not seen


class Shape(NamedTuple):
    """How many source and target tokens a chunk has."""

    source: int
    target: int


def shapes_of(max_source: int, max_target: int) -> list[Shape]:
    """The shapes of chunks: one token on at least one side, or a source token without target."""
    both = product(range(1, max_source + 1), range(max_target + 1))
    return [Shape(a, b) for a, b in both if min(a, b) == 1 or (a, b) == (1, 0)]


class Grams:
    """The different sequences of `size` tokens within rows, sorted, and which of them begins at every place."""

    def __init__(self, rows: Ragged, size: int) -> None:
        owner = np.repeat(np.arange(len(rows)), rows.lengths)
        starts = np.flatnonzero(owner[: max(0, len(owner) - size + 1)] == owner[size - 1 :])  # within one row
        windows = rows.flat.astype(np.int64)[starts[:, None] + np.arange(size)]
        base, numbers = int(windows.max(initial=0)) + 1, np.zeros(len(starts), np.int64)
        for tokens in windows.T:  # token by token: a whole sequence would not fit into one number
            _, firsts, numbers = np.unique(numbers * base + tokens, return_index=True, return_inverse=True)
        self.sequences = windows[firsts]  # (M, size)
        self.offsets, self.numbers = rows.offsets, np.zeros(len(owner) + 1, np.int64)
        self.numbers[starts] = numbers

    def places(self, rows: Ints, count: int) -> Ints:
        """The sequence at the first `count` places of some rows (N,): (N, count); any where padding is."""
        places = self.offsets[rows][:, None] + np.arange(count)
        return np.asarray(self.numbers[np.minimum(places, len(self.numbers) - 1)])


class Chunks:
    """Numbers for chunks: that of the source part times the number of target parts, plus that of the target part."""

    def __init__(self, sources: Ragged, targets: Ragged, shapes: list[Shape]) -> None:
        self.shapes = shapes
        self.source_grams = {a: Grams(sources, a) for a in {shape.source for shape in shapes}}
        self.target_grams = {b: Grams(targets, b) for b in {shape.target for shape in shapes} - {0}}
        sizes = [len(self.source_grams[a].sequences) * self.targets_of(b) for a, b in shapes]
        self.firsts = np.concatenate([[0], np.cumsum(sizes)])  # of each shape

    def targets_of(self, size: int) -> int:
        return len(self.target_grams[size].sequences) if size else 1

    def numbers(self, number: int, group: LatticeGroup) -> Ints:
        """The chunk of a shape at every start in the sources and targets of a group: (N, S−a+1, T−b+1)."""
        a, b = self.shapes[number]
        rows = self.source_grams[a].places(group.indices, group.length - a + 1)[:, :, None]
        columns = np.zeros((1, group.width + 1), np.int64)
        if b:
            columns = self.target_grams[b].places(group.indices, group.width - b + 1)
        return np.asarray(self.firsts[number] + rows * self.targets_of(b) + columns[:, None])

    def parts(self, chunk: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        number = int(np.searchsorted(self.firsts, chunk, side="right")) - 1
        a, b = self.shapes[number]
        row, column = divmod(chunk - int(self.firsts[number]), self.targets_of(b))
        target = tuple(self.target_grams[b].sequences[column].tolist()) if b else ()
        return tuple(self.source_grams[a].sequences[row].tolist()), target


class LatticeGroup(NamedTuple):
    """Pairs whose sources have one length."""

    indices: Ints  # (N,)
    length: int  # of the sources
    lengths: Ints  # (N,) of the targets

    @property
    def width(self) -> int:
        """The length of the longest target."""
        return int(self.lengths.max())


def groups(sources: Ragged, targets: Ragged, indices: Ints) -> Iterator[LatticeGroup]:
    """The pairs at some indices, by source length and then by target length."""
    for same in by_source_length(sources, targets, indices):
        for first in range(0, len(same), GROUP):
            chosen = same[first : first + GROUP]
            yield LatticeGroup(chosen, int(sources.lengths[chosen[0]]), targets.lengths[chosen])


class Lattice:
    """All ways to cut the pairs of a group: an arc for every chunk at every place."""

    def __init__(self, group: LatticeGroup, chunks: Chunks, known: Ints | None = None) -> None:
        """Arcs hold numbers of chunks or, with sorted numbers `known`, their places there (`compress`)."""
        self.group, self.chunks = group, chunks
        self.length, self.width = length, width = group.length, group.width
        self.arcs: dict[int, Ints] = {}  # shape → (N, S−a+1, T−b+1)
        self.real: dict[int, Bools] = {}  # (N, 1, T−b+1): the chunk ends within the target
        for number, (a, b) in enumerate(chunks.shapes):
            if a <= length and b <= width:
                self.arcs[number] = chunks.numbers(number, group)
                ends = np.arange(b, width + 1)
                self.real[number] = (ends <= group.lengths[:, None])[:, None, :]
        if known is not None:
            self.compress(known)

    def compress(self, known: Ints) -> None:
        """Replace the numbers of chunks by their places in a sorted array; its length stands for all others."""
        for number, arcs in self.arcs.items():
            places = np.minimum(np.searchsorted(known, arcs), len(known) - 1)
            self.arcs[number] = np.where(known[places] == arcs, places, len(known)).astype(np.int32)

    def distinct(self) -> Ints:
        parts = [np.unique(arcs[np.broadcast_to(self.real[number], arcs.shape)]) for number, arcs in self.arcs.items()]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def weights(self, probabilities: Floats) -> dict[int, Floats]:
        """The probability of every arc; 0 beyond the end of a target."""
        return {number: probabilities[arcs] * self.real[number] for number, arcs in self.arcs.items()}

    def forward(self, weights: dict[int, Floats], starts: Ints) -> tuple[Floats, Floats]:
        """Scaled forward values (N, S+1, T+1) and the logarithm of the scale of each row (N, S+1).

        The paths of each pair begin in a cell of the first row, at the column `starts` (N,).
        """
        count = len(self.group.indices)
        values = np.zeros((count, self.length + 1, self.width + 1))
        scales = np.zeros((count, self.length + 1))
        values[np.arange(count), 0, starts] = 1.0
        for i in range(1, self.length + 1):
            reference = scales[:, i - 1]
            for number, weight in weights.items():
                a, b = self.chunks.shapes[number]
                if a <= i:
                    factor = np.exp(scales[:, i - a] - reference)[:, None]
                    values[:, i, b:] += values[:, i - a, : self.width + 1 - b] * weight[:, i - a] * factor
            scales[:, i] = reference + rescale(values[:, i])
        return values, scales

    def backward(self, weights: dict[int, Floats]) -> tuple[Floats, Floats]:
        """Sums from the ends of the pairs: the forward pass over the lattice turned around."""
        turned = {number: weight[:, ::-1, ::-1] for number, weight in weights.items()}
        values, scales = self.forward(turned, self.width - self.group.lengths)
        return values[:, ::-1, ::-1], scales[:, ::-1]

    def expected(self, probabilities: Floats) -> tuple[Floats, Floats]:
        """The expected number of every chunk, and the log-likelihood (N,); −∞ for pairs that cannot be cut."""
        weights = self.weights(probabilities)
        ahead, ahead_scales = self.forward(weights, np.zeros(len(self.group.lengths), np.int64))
        behind, behind_scales = self.backward(weights)
        last = ahead[np.arange(len(ahead)), self.length, self.group.lengths]
        with np.errstate(divide="ignore"):
            totals = np.log(last) + ahead_scales[:, -1]
        counts = np.zeros(len(probabilities))
        usable = np.isfinite(totals)
        for number, weight in weights.items():
            a, b = self.chunks.shapes[number]
            starts = self.length + 1 - a
            logs = ahead_scales[:, :starts] + behind_scales[:, a:] - np.where(usable, totals, np.inf)[:, None]
            share = ahead[:, :starts, : self.width + 1 - b] * weight * behind[:, a:, b:] * np.exp(logs)[:, :, None]
            counts += np.bincount(self.arcs[number].ravel(), share.ravel(), len(probabilities))
        counts[-1] = 0.0
        return counts, totals

    def best(self, logs: Floats) -> list[list[int] | None]:
        """The most probable cut of every pair as chunks; None: it cannot be cut."""
        count = len(self.group.indices)
        values = np.full((count, self.length + 1, self.width + 1), -np.inf)
        values[:, 0, 0] = 0.0
        choice = np.full(values.shape, -1, np.int8)
        for i in range(1, self.length + 1):
            for number, arcs in self.arcs.items():
                a, b = self.chunks.shapes[number]
                if a > i:
                    continue
                weight = np.where(self.real[number][:, 0], logs[arcs[:, i - a]], -np.inf) * max(a, b)
                reached = values[:, i - a, : self.width + 1 - b] + weight
                better = reached > values[:, i, b:]
                values[:, i, b:] = np.where(better, reached, values[:, i, b:])
                choice[:, i, b:] = np.where(better, number, choice[:, i, b:])
        return [self._path(row, choice[row], len(logs) - 1) for row in range(count)]

    def _path(self, row: int, choice: NDArray[np.int8], unknown: int) -> list[int] | None:
        i, j = self.length, int(self.group.lengths[row])
        chunks: list[int] = []
        while i or j:
            number = int(choice[i, j])
            if number < 0:
                return None
            a, b = self.chunks.shapes[number]
            i, j = i - a, j - b
            chunks.append(int(self.arcs[number][row, i, j]))
        return None if unknown in chunks else chunks[::-1]


def rescale(values: Floats) -> Floats:
    """Divide rows (N, T) by their largest value, in place; returns its logarithm (N,), 0 for rows of zeros."""
    largest = values.max(1)
    safe = np.where(largest > 0, largest, 1.0)
    values /= safe[:, None]
    return np.asarray(np.log(safe))


class Cut(NamedTuple):
    """Pairs as sequences of chunks."""

    chunks: Chunks
    known: Ints  # numbers of the chunks that the paths refer to
    paths: list[list[int] | None]  # places in `known`; None: the pair cannot be cut
    losses: list[float]  # per pair, before every iteration

    def parts(self, place: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.chunks.parts(int(self.known[place]))


def align_jointly(sources: Ragged, targets: Ragged, shapes: list[Shape], iterations: int, note: Note) -> Cut:
    """Cut every pair into chunks.

    A chunk with more than one token on a side counts that often in the final cut, or the longest chunks would win.
    """
    chunks = Chunks(sources, targets, shapes)
    usable = np.flatnonzero((sources.lengths > 0) & (targets.lengths > 0))
    sampled = usable[np.unique(np.linspace(0, len(usable) - 1, min(PAIRS, len(usable))).astype(np.int64))]
    lattices = [Lattice(group, chunks) for group in groups(sources, targets, sampled)]
    known = np.unique(np.concatenate([lattice.distinct() for lattice in lattices]))
    for lattice in lattices:
        lattice.compress(known)
    size = len(known) + 1
    probabilities = np.full(size, 1 / size)
    losses: list[float] = []
    for iteration in range(iterations):
        note("aligning source and target", iteration + 1)
        counts, likelihood, reached = np.zeros(size), 0.0, 0
        for lattice in lattices:
            expected, totals = lattice.expected(probabilities)
            counts += expected
            likelihood += float(totals[np.isfinite(totals)].sum())
            reached += int(np.isfinite(totals).sum())
        losses.append(-likelihood / max(1, reached))
        probabilities = counts / counts.sum() if counts.sum() else probabilities
    with np.errstate(divide="ignore"):
        logs = np.log(np.maximum(probabilities, FLOOR))
    out: list[list[int] | None] = [None] * len(sources)
    for group in groups(sources, targets, usable):
        for index, path in zip(group.indices.tolist(), Lattice(group, chunks, known).best(logs), strict=True):
            out[index] = path
    return Cut(chunks, known, out, losses)
