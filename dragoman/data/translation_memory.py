"""A translation memory: exact matches by hash, fuzzy matches by an inverted index of words.

A million pairs stay small: texts are UTF-8 in two buffers, postings are 32-bit numbers. A query reads the postings of
its rarest words, ranks the segments that share them, and compares the best ones word by word.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.base import DataError
from dragoman.data.cleaning.cleaner import text_hash
from dragoman.data.examples import Example, Fault
from dragoman.data.readers.base import ReadOptions
from dragoman.data.readers.pairs import read_pairs
from dragoman.scoring import edit_distance

POSTINGS = 100_000  # read for a query at most, rare words first
CANDIDATES = 48  # compared word by word
# A word, a sign, or a character of a script without spaces: Thai, Lao, Myanmar, Khmer, kana, Chinese characters.
# `re` compiles it when it is first needed: with so many characters that takes 10 ms.
_TOKEN = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
    "|[^\\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+|[^\\w\\s]"
)


class Match(NamedTuple):
    """A segment of the memory; `score` is 1 − edits / words of the longer text, 1.0 only for the same text."""

    score: float
    source: str
    target: str


def words_and_signs(text: str) -> list[str]:
    return re.findall(_TOKEN, text.casefold())


class Texts:
    """Many texts in one buffer."""

    def __init__(self) -> None:
        self.buffer, self.ends = bytearray(), array("Q", [0])

    def add(self, text: str) -> None:
        self.buffer += text.encode("utf-8", "surrogatepass")
        self.ends.append(len(self.buffer))

    def __getitem__(self, index: int) -> str:
        return self.buffer[self.ends[index] : self.ends[index + 1]].decode("utf-8", "surrogatepass")


class TranslationMemory:
    """Pairs of segments. Of several with the same source the last one counts for exact matches."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.sources, self.targets = Texts(), Texts()
        words: dict[str, int] = {}
        hashes, owners, postings = array("Q"), array("I"), array("I")
        for number, (source, target) in enumerate(pairs):
            self.sources.add(source)
            self.targets.add(target)
            hashes.append(text_hash(source))
            for token in set(words_and_signs(source)):
                postings.append(words.setdefault(token, len(words)))
                owners.append(number)
        self.words, self.size = words, len(hashes)
        own = np.array(hashes, np.uint64)
        self.order = np.argsort(own, kind="stable").astype(np.uint32)  # of equal hashes the last pair stays last
        self.hashes = own[self.order]
        self._index(np.array(postings, np.uint32), np.array(owners, np.uint32))

    def _index(self, postings: NDArray[np.uint32], owners: NDArray[np.uint32]) -> None:
        """Segments by word: those of word w are `owners[starts[w]:starts[w + 1]]`."""
        self.owners = owners[np.argsort(postings, kind="stable")]
        counts = np.bincount(postings, minlength=len(self.words))
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        self.weights = np.log1p(self.size / np.maximum(1, counts))

    @classmethod
    def read(cls, path: str | Path, options: ReadOptions | None = None) -> TranslationMemory:
        """The pairs of a TSV, TMX or any other file of pairs; a faulty line is an error."""
        items = read_pairs(path, options or ReadOptions())
        memory = cls(_usable(item) for item in items)
        if not memory.size:
            raise DataError(f"{path}: found no pair, expected a translation memory")
        return memory

    def __len__(self) -> int:
        return self.size

    def exact(self, text: str) -> str | None:
        """The translation of a text, white space apart; None: the memory does not have it."""
        place = int(np.searchsorted(self.hashes, np.uint64(text_hash(text)), side="right")) - 1
        if place < 0 or self.hashes[place] != text_hash(text):
            return None
        index = int(self.order[place])
        return self.targets[index] if self.sources[index].split() == text.split() else None

    def fuzzy(self, text: str, least: float = 0.7, count: int = 1, *, other: bool = False) -> list[Match]:
        """The segments most like a text, best first, of at least this score; `other`: none with the same source."""
        query = words_and_signs(text)
        known = [number for token in set(query) if (number := self.words.get(token)) is not None]
        known.sort(key=lambda word: int(self.starts[word + 1] - self.starts[word]))
        parts: list[NDArray[np.uint32]] = []
        weights: list[NDArray[np.float64]] = []
        total = 0
        for word in known:
            part = self.owners[self.starts[word] : self.starts[word + 1]]
            if parts and total + len(part) > POSTINGS:
                break
            parts.append(part[:POSTINGS])
            weights.append(np.full(len(parts[-1]), self.weights[word]))
            total += len(parts[-1])
        if not parts:
            return []
        owners, which = np.unique(np.concatenate(parts), return_inverse=True)
        shared = np.bincount(which, np.concatenate(weights))
        best = owners[np.argsort(-shared, kind="stable")[:CANDIDATES]]
        matches = (self._match(query, text, int(index)) for index in best)
        kept = [match for match in matches if match.score >= least and not (other and match.score == 1.0)]
        return sorted(kept, reverse=True)[:count]

    def _match(self, query: list[str], text: str, index: int) -> Match:
        source = self.sources[index]
        tokens = words_and_signs(source)
        score = 1 - edit_distance(query, tokens) / max(len(query), len(tokens), 1)
        if score == 1.0 and source.split() != text.split():
            score = 0.99  # letters of other case: not the same text
        return Match(score, source, self.targets[index])


def _usable(item: Example | Fault) -> tuple[str, str]:
    if isinstance(item, Fault):
        raise DataError(f"{item}; a translation memory needs a source and a target in every line")
    return item.source, item.references[0]
