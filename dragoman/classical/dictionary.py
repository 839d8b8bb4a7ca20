"""Baselines that look their output up: copy the source, memorise the training pairs, take the nearest source's target.

A model that does not beat the best of them has learned nothing useful.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from dragoman.base import check_interrupted
from dragoman.base.config import Range, setting
from dragoman.classical.model import (
    Arrays,
    Note,
    ScoredTokens,
    TensorSpec,
    Tokens,
    Transducer,
    row_arrays,
    row_specs,
    stored_rows,
)
from dragoman.classical.rows import Ragged, pair_rows
from dragoman.scoring import edit_distance

if TYPE_CHECKING:
    from dragoman.data import Corpus

BUCKETS = 64  # into which `nearest` counts tokens
UNSEEN = -20.0  # the score of an output that the training pairs do not have
BATCH = 256  # sources compared at a time
SIDES = ("source", "target")


@dataclass(frozen=True)
class CopyConfig:
    """The source is the output."""

    kind: ClassVar[str] = "copy"
    fitted: ClassVar[bool] = True


@dataclass(frozen=True)
class MemoriseConfig:
    """The most frequent target of the same source; other sources: by longest matches of words, which copy the rest."""

    kind: ClassVar[str] = "memorise"
    fitted: ClassVar[bool] = True


@dataclass(frozen=True)
class NearestConfig:
    """The most frequent target of the training source with the smallest edit distance."""

    kind: ClassVar[str] = "nearest"
    fitted: ClassVar[bool] = True
    candidates: Annotated[int, Range(1)] = setting(
        2000, help="training sources whose exact distance is computed, those with the most similar tokens"
    )


class Copy(Transducer):
    """y = x; source and target share one vocabulary."""

    likelihood = "none"

    def tensor_specs(self) -> dict[str, TensorSpec]:
        return {"pairs": TensorSpec(np.int64, ())}

    def fit(self, corpus: Corpus, note: Note) -> list[float]:
        self.load({"pairs": np.array(len(corpus.train), np.int64)})
        return []

    def transduce(self, sources: Sequence[Sequence[int]], beam: int, n_best: int) -> list[list[ScoredTokens]]:
        return [[ScoredTokens.of(source)] for source in sources]


class Dictionary(Transducer):
    """Distinct training pairs with their counts, sorted by source and then by falling count."""

    likelihood = "none"

    def __init__(self, vocabulary: int | None = None) -> None:
        """`vocabulary`: tokens of the target, which stored targets are checked by."""
        super().__init__()
        self.vocabulary = vocabulary

    def tensor_specs(self) -> dict[str, TensorSpec]:
        return {
            **row_specs("sources", "source_offsets", "N", None),
            **row_specs("targets", "target_offsets", "N", self.vocabulary),
            "counts": TensorSpec(np.int64, ("N",), least=1),
        }

    def fit(self, corpus: Corpus, note: Note) -> list[float]:
        note("counting pairs", 0)
        sources, targets = pair_rows(corpus.train)
        self.count(zip(sources, targets, strict=True))
        return []

    def count(self, pairs: Iterable[tuple[Tokens, Tokens]]) -> None:
        ranked = sorted(Counter(pairs).items(), key=lambda item: (item[0][0], -item[1], item[0][1]))
        sources, targets = (Ragged.of([pair[side] for pair, _ in ranked]) for side in (0, 1))
        self.store(
            {
                **row_arrays("sources", "source_offsets", sources),
                **row_arrays("targets", "target_offsets", targets),
                "counts": np.array([count for _, count in ranked], np.int64),
            }
        )

    def load(self, tensors: Arrays) -> None:
        super().load(tensors)
        # Entries of one source are neighbours: of every source the first entry, and the one behind its last.
        self.sources, self.targets = (stored_rows(f"{side}s", f"{side}_offsets", tensors) for side in SIDES)
        self.entries: dict[Tokens, tuple[int, int]] = {}
        for index, source in enumerate(self.sources):
            self.entries[source] = (self.entries.get(source, (index, 0))[0], index + 1)

    def known(self, source: Tokens, n_best: int) -> list[ScoredTokens]:
        """The targets of a training source, most frequent first; none if it is not one."""
        first, end = self.entries.get(source, (0, 0))
        counts = self.tensors["counts"][first:end]
        logs = np.log(counts / counts.sum()).tolist()
        return [ScoredTokens.of(self.targets[first + rank], log) for rank, log in enumerate(logs[:n_best])]


class Memorise(Dictionary):
    """The most frequent target of a known source; an unknown one is split into its longest known parts."""

    def __init__(self, space: int | None = None, shared: bool = True, vocabulary: int | None = None) -> None:
        """`space`: the token between words; `shared`: source and target share a vocabulary, so words can be copied."""
        super().__init__(vocabulary)
        self.space, self.shared = space, shared

    def transduce(self, sources: Sequence[Sequence[int]], beam: int, n_best: int) -> list[list[ScoredTokens]]:
        rows = [tuple(source) for source in sources]
        return [self.known(row, n_best) or [ScoredTokens.of(self.longest_match(row), UNSEEN)] for row in rows]

    def longest_match(self, source: Tokens) -> Tokens:
        """From left to right the longest known sequence of words; a word that begins none is copied, or left out."""
        words: list[Tokens] = [()]
        for token in source:
            if token == self.space:
                words.append(())
            else:
                words[-1] += (token,)
        out: list[Tokens] = []
        place = 0
        while place < len(words):
            check_interrupted()
            for end in range(len(words), place, -1):
                if outputs := self.known(self.joined(words[place:end]), 1):
                    out.append(outputs[0].tokens)
                    break
            else:
                end = place + 1
                out += [words[place]] if self.shared else []
            place = end
        return self.joined(out)

    def joined(self, words: Sequence[Tokens]) -> Tokens:
        glue = () if self.space is None else (self.space,)
        return tuple(token for number, word in enumerate(words) for token in (*(glue if number else ()), *word))


class Nearest(Dictionary):
    """The target of the nearest source by edit distance; of equally near ones, the first in sorted order."""

    def __init__(self, config: NearestConfig, vocabulary: int | None = None) -> None:
        super().__init__(vocabulary)
        self.config = config

    @cached_property
    def distinct(self) -> tuple[NDArray[np.int64], Ragged, NDArray[np.int16]]:
        """First entry, tokens and bag of hashed tokens (N, 64) of every distinct source."""
        firsts = np.array([first for first, _ in self.entries.values()], np.int64)
        rows = self.sources.take(firsts)
        owner = np.repeat(np.arange(len(rows)), rows.lengths)
        bags = np.bincount(owner * BUCKETS + rows.flat % BUCKETS, minlength=len(rows) * BUCKETS)
        return firsts, rows, bags.reshape(-1, BUCKETS).astype(np.int16)

    def transduce(self, sources: Sequence[Sequence[int]], beam: int, n_best: int) -> list[list[ScoredTokens]]:
        return [self.known_or_nearest(tuple(source), n_best) for source in sources]

    def known_or_nearest(self, source: Tokens, n_best: int) -> list[ScoredTokens]:
        if source in self.entries and n_best == 1:
            return [ScoredTokens.of(self.known(source, 1)[0].tokens, 0.0)]
        near = self.nearest(source, n_best)
        return [ScoredTokens.of(self.targets[entry], -float(distance)) for entry, distance in near]

    def nearest(self, source: Tokens, count: int) -> list[tuple[int, int]]:
        """The entries of the nearest sources and their distances.

        With token counts a and b, max(Σ(a−b)⁺, Σ(b−a)⁺) is a lower bound of the edit distance: most sources need no
        table.
        """
        firsts, rows, bags = self.distinct
        query = np.array(source, np.int64)
        bag = np.bincount(query % BUCKETS, minlength=BUCKETS).astype(np.int16)
        l1 = np.abs(bags - bag).sum(1, dtype=np.int64)
        bounds = (l1 + np.abs(rows.lengths - len(query))) // 2
        order = np.argsort(bounds, kind="stable")[: self.config.candidates]
        best: list[tuple[int, int]] = []  # (distance, index)
        for start in range(0, len(order), BATCH):
            check_interrupted()
            chunk = order[start : start + BATCH]
            if len(best) >= count and bounds[chunk[0]] > best[count - 1][0]:
                break
            best = sorted([*best, *((edit_distance(source, rows[index]), index) for index in chunk.tolist())])[:count]
        return [(int(firsts[index]), distance) for distance, index in best]
