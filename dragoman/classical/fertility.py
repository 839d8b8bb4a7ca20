"""IBM model 3 (Brown et al. 1993, section 4.4): how many target words a source word has, and where they stand.

With φ_i target words of source word i, φ_0 of the empty word, m target words and the alignment a:

    p(f, a | e) = C(m − φ_0, φ_0) p₀^{m − 2φ_0} p₁^{φ_0} · Π_i φ_i! n(φ_i | e_i)
                  · Π_j t(f_j | e_{a_j}) · Π_{a_j > 0} d(j | a_j)

Sums over all alignments take too long. Training and alignment start from the alignment of model 2 and climb the hill by
moves of one link and swaps of two, as GIZA does. d depends on the distance from the diagonal alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dragoman.classical.rows import Floats, Ints

MAX_FERTILITY = 9
FAR = 12  # distances from the diagonal beyond this count as this
FACTORIALS = np.array([math.lgamma(count + 1) for count in range(MAX_FERTILITY + 2)])
NEVER = -1e9
STEPS = 100


class PairScores(NamedTuple):
    """What an alignment of one pair is scored by, in logarithms."""

    links: Floats  # (T, S+1): t(f_j | e_i) · d(j | i), the empty word first
    fertilities: Floats  # (S+1, T+2): φ! n(φ | e_i), and for the empty word its own term

    def score(self, alignment: Ints) -> float:
        counts = np.bincount(alignment, minlength=self.links.shape[1])
        rows = np.arange(len(alignment))
        return float(self.links[rows, alignment].sum() + self.fertilities[np.arange(len(counts)), counts].sum())

    def hill_climb(self, alignment: Ints) -> tuple[Ints, Floats]:
        """The best alignment that moves and swaps lead to, and the gains (T, S+1) of moving each of its links."""
        alignment = alignment.copy()
        rows = np.arange(len(alignment))
        for _ in range(STEPS):
            moves = self.move_gains(alignment)
            crossed = self.links[:, alignment]  # (T, T)
            own = np.diag(crossed)
            swaps = crossed + crossed.T - own[:, None] - own[None]
            best_move, best_swap = moves.max(), swaps.max()
            if max(best_move, best_swap) <= 1e-9:
                break
            if best_move >= best_swap:
                row, place = np.unravel_index(int(moves.argmax()), moves.shape)
                alignment[row] = place
            else:
                left, right = np.unravel_index(int(swaps.argmax()), swaps.shape)
                alignment[[left, right]] = alignment[[right, left]]
        gains = self.move_gains(alignment)
        gains[rows, alignment] = 0.0
        return alignment, gains

    def move_gains(self, alignment: Ints) -> Floats:
        """What linking each target word with each source word would add to the score: (T, S+1)."""
        rows, places = np.arange(len(alignment)), np.arange(self.links.shape[1])
        counts = np.bincount(alignment, minlength=len(places))
        now = self.fertilities[places, counts]
        more = self.fertilities[places, counts + 1] - now
        less = self.fertilities[places, np.maximum(counts - 1, 0)] - now
        gains: Floats = self.links - self.links[rows, alignment][:, None] + less[alignment][:, None] + more
        gains[rows, alignment] = 0.0
        return gains


class FertilityModel:
    """n(φ | e), d and p₁, learned from alignments."""

    def __init__(self, words: int) -> None:
        self.fertility = np.tile(
            np.append(np.array([0.2, 0.6, 0.15, 0.05]), np.full(MAX_FERTILITY - 3, 0.001)), (words, 1)
        )
        self.fertility /= self.fertility.sum(1, keepdims=True)
        self.distances = 0.5 ** np.abs(np.arange(-FAR, FAR + 1))
        self.empty = 0.1  # p₁

    def scores(self, sources: Ints, emitted: Floats) -> PairScores:
        """The scores of a pair of source words (S+1,), the empty word first, with t(f_j | e_i) as (T, S+1)."""
        steps, width = emitted.shape
        with np.errstate(divide="ignore"):
            links = np.maximum(np.log(np.maximum(emitted, 1e-12)), NEVER)
            links[:, 1:] += np.log(self.placing(steps, width - 1))
            table = np.full((width, steps + 2), NEVER)
            size = min(MAX_FERTILITY, steps + 1) + 1
            table[1:, :size] = (np.log(self.fertility[sources[1:]]) + FACTORIALS[: MAX_FERTILITY + 1])[:, :size]
        for count in range(steps // 2 + 1):
            ways = math.lgamma(steps - count + 1) - math.lgamma(count + 1) - math.lgamma(steps - 2 * count + 1)
            table[0, count] = ways + (steps - 2 * count) * math.log(1 - self.empty) + count * math.log(self.empty)
        return PairScores(links, table)

    def placing(self, steps: int, length: int) -> Floats:
        """d(j | i) (T, S), by the distance of j from i on the diagonal; each column sums to 1."""
        weights = self.distances[self.offsets(steps, length)]
        return np.asarray(weights / weights.sum(0, keepdims=True))

    @staticmethod
    def offsets(steps: int, length: int) -> Ints:
        """The index of every distance: (T, S)."""
        middle = (np.arange(length) + 0.5) * steps / max(1, length) - 0.5
        distances = np.rint(np.arange(steps)[:, None] - middle[None]).astype(np.int64)
        return np.clip(distances, -FAR, FAR) + FAR

    def update(self, pairs: Iterable[tuple[Ints, Ints]]) -> None:
        """Learn from alignments: (source words with the empty word first, alignment) of each pair."""
        counts = np.zeros_like(self.fertility)
        distances = np.full(len(self.distances), 0.1)
        empty, total = 1.0, 10.0
        for sources, alignment in pairs:
            fertilities = np.minimum(np.bincount(alignment, minlength=len(sources)), MAX_FERTILITY)
            np.add.at(counts, (sources[1:], fertilities[1:]), 1.0)
            real = alignment > 0
            if len(sources) > 1:
                offsets = self.offsets(len(alignment), len(sources) - 1)
                np.add.at(distances, offsets[np.flatnonzero(real), alignment[real] - 1], 1.0)
            empty, total = empty + float((~real).sum()), total + float(real.sum())
        usual = (counts.sum(0) + 0.01) / (counts.sum() + 0.01 * counts.shape[1])
        self.fertility = (counts + 2 * usual) / (counts.sum(1, keepdims=True) + 2)
        self.distances = distances / distances.sum()
        self.empty = min(0.5, empty / total)
