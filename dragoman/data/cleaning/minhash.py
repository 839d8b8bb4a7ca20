"""Near duplicates by MinHash and locality-sensitive hashing (Broder 1997), with texts and hashes on disk.

Two texts are near duplicates if the Jaccard similarity of their character 5-grams is at least a threshold. Hashing only
finds candidates; each is then checked exactly.
"""

from __future__ import annotations

import re
import tempfile
from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

GRAM = 5  # characters
BANDS, ROWS = 16, 4  # texts of similarity s share a band with probability 1 − (1 − s⁴)¹⁶: 0.8 → 0.9998
_RANDOM = np.random.default_rng(20_240_601)
_FACTORS = _RANDOM.integers(1, 1 << 63, BANDS * ROWS, dtype=np.uint64) | np.uint64(1)
_OFFSETS = _RANDOM.integers(0, 1 << 63, BANDS * ROWS, dtype=np.uint64)
_MIX = _RANDOM.integers(1, 1 << 63, (BANDS, ROWS), dtype=np.uint64) | np.uint64(1)
_POWERS = np.array([np.uint64(0x100000001B3) ** np.uint64(power) for power in range(GRAM)], np.uint64)


def normal_form(text: str) -> str:
    """The text without differences that do not matter: case, digits, punctuation, white space."""
    return re.sub(r"\d", "0", re.sub(r"[^\w\t]+", " ", text.lower())).strip()


def gram_hashes(text: str) -> NDArray[np.uint64]:
    """A hash of every run of five characters; shorter texts are one run."""
    codes = np.frombuffer(text.ljust(GRAM).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(codes, GRAM)
    hashes: NDArray[np.uint64] = (windows * _POWERS).sum(1, dtype=np.uint64)
    return np.unique(hashes)


def band_hashes(grams: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One hash per band of the MinHash signature: (BANDS,)."""
    mixed = grams[:, None] * _FACTORS + _OFFSETS
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    smallest = mixed.min(0).reshape(BANDS, ROWS)
    hashes: NDArray[np.uint64] = (smallest * _MIX).sum(1, dtype=np.uint64)
    return hashes


def similarity(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> float:
    """The Jaccard similarity of two sets of grams."""
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / max(1, len(first) + len(second) - shared)


class NearDuplicates:
    """Texts are added one by one; then `earlier` says which have an earlier near duplicate. Memory: 8 bytes a text."""

    def __init__(self, threshold: float) -> None:
        self.threshold, self.count = threshold, 0
        self._texts, self._bands = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  (until collected)
        self._ends = array("Q", [0])

    def add(self, text: str) -> None:
        data = normal_form(text).encode("utf-8", "surrogatepass")
        self._texts.write(data)
        self._ends.append(self._ends[-1] + len(data))
        self._bands.write(band_hashes(gram_hashes(data.decode("utf-8", "surrogatepass"))).tobytes())
        self.count += 1

    def earlier(self) -> dict[int, int]:
        """For every text with an earlier near duplicate that is kept: the number of that one. To be asked once."""
        kept: dict[int, int] = {}
        with self._texts, self._bands:
            self._bands.flush()
            for index, earlier in self._candidates():
                first = kept.get(earlier, earlier)
                if index in kept or index == first:
                    continue
                if similarity(self._grams(index), self._grams(first)) >= self.threshold:
                    kept[index] = first
        return kept

    def _candidates(self) -> Iterator[tuple[int, int]]:
        """(text, earlier text) with a band in common, in the order of the texts."""
        if self.count < 2:
            return
        bands = np.memmap(self._bands, np.uint64, "r", shape=(self.count, BANDS))
        pairs: list[NDArray[np.int64]] = []
        for band in range(BANDS):
            column = np.array(bands[:, band])
            order = np.argsort(column, kind="stable")
            values = column[order]
            same = values[1:] == values[:-1]
            starts = np.flatnonzero(np.concatenate([[True], ~same]))
            first = order[np.repeat(starts, np.diff(np.append(starts, len(order))))]
            for earlier in (order[:-1][same], first[1:][same]):  # the one before, and the first of all
                pairs.append(np.stack([order[1:][same], earlier], 1))
        joined = np.unique(np.concatenate(pairs), axis=0)
        yield from map(tuple, joined.tolist())

    def _grams(self, index: int) -> NDArray[np.uint64]:
        self._texts.seek(self._ends[index])
        data = self._texts.read(self._ends[index + 1] - self._ends[index])
        return gram_hashes(data.decode("utf-8", "surrogatepass"))
