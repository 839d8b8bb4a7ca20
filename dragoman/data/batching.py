"""Which rows make a batch: token-budget batches of similar lengths, their order computed from (seed, epoch)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dragoman.base import ConfigError
from dragoman.data.batch import Batch
from dragoman.data.collate import PAIR_COLLATOR, Collator
from dragoman.data.rows import round_up_lengths
from dragoman.data.store import Column, TokenStore
from dragoman.data.tokenizers.base import EOS

ROWS = 4096  # of a column, read at a time


@dataclass(frozen=True)
class EpochPlan:
    """The batches of one epoch: rows[bounds[i]:bounds[i+1]] make batch i."""

    rows: NDArray[np.int32]
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        return self.rows[self.bounds[index] : self.bounds[index + 1]].astype(np.int64)

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return (self[index] for index in range(len(self)))


class BatchPlan:
    """Cuts a store into batches of at most `budget` tokens on either side, padding included.

    Rows are sorted by rounded target length and, within it, by source length. Rows that do not fill a batch of their
    target length are pooled and cut the same way. So the number of rows follows from the shape, and only the last batch
    of an epoch may be short. A row longer than the budget makes a batch of its own.

    With `batch_rows` every batch has so many rows of any lengths in place of a budget of tokens: a batch of short rows
    alone would give each of its tokens the weight of many in another batch.
    """

    def __init__(
        self,
        store: TokenStore,
        budget: int,
        seed: int,
        collator: Collator = PAIR_COLLATOR,
        parts: NDArray[np.int32] | None = None,
        batch_rows: int = 0,
    ) -> None:
        """`parts` has a number for every row: all rows of a batch have the same one."""
        self.parts, self.batch_rows = parts, batch_rows
        self.budget, self.seed, self.collator = budget, seed, collator
        self.weights = store.weights
        stored_source, stored_target = store.source.lengths(), store.target.lengths()
        source = collator.source.padded_lengths(stored_source)
        target = collator.target.padded_lengths(stored_target)
        grid = round_up_lengths(np.arange(1 + max(source.max(initial=1), target.max(initial=1)))).astype(np.int32)
        self.source_lengths, self.target_lengths = grid[source], grid[target]
        if collator.loss_terms:
            self.target_tokens = collator.loss_terms(stored_source, stored_target)
        else:
            self.target_tokens = collator.target.loss_terms(stored_target)
        # Rounding up past the longest row would only pad, perhaps beyond the positions of a model.
        self.max_widths = {"source": int(source.max(initial=1)), "target": int(target.max(initial=1))}
        # Longest first. The grid has so few steps that those of both columns fit into two bytes, which sort fast.
        steps, step = np.unique(-grid, return_inverse=True)
        step = step.astype(np.uint16)
        self._rank = step[target] * np.uint16(len(steps)) + step[source]

    def __len__(self) -> int:
        return len(self.source_lengths)

    def epoch(self, epoch: int) -> EpochPlan:
        """The batches of one epoch, a pure function of the seed and the epoch's number."""
        random = np.random.default_rng([self.seed, epoch])
        order = np.arange(len(self), dtype=np.int32)
        if self.weights is not None:  # a weight of 1.3: once, and with probability 0.3 once more
            copies = (self.weights + random.random(len(self), np.float32)).astype(np.int64)
            order = np.repeat(order, copies) if copies.any() else order
        random.shuffle(order)
        if self.parts is None:
            batches = self._batches(order)
        else:
            by_part = order[np.argsort(self.parts[order], kind="stable")]
            groups = np.split(by_part, np.flatnonzero(np.diff(self.parts[by_part])) + 1)
            batches = [batch for group in groups for batch in self._batches(group)]
        batches = [batches[index] for index in random.permutation(len(batches))]
        bounds = np.concatenate([[0], np.cumsum([len(batch) for batch in batches])]).astype(np.int64)
        return EpochPlan(np.concatenate(batches) if batches else order, bounds)

    def _batches(self, order: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        if self.batch_rows:
            return np.split(order, range(self.batch_rows, len(order), self.batch_rows))
        order = order[self._sorted(order)]
        batches: list[NDArray[np.int32]] = []
        leftovers: list[NDArray[np.int32]] = []
        changes = np.flatnonzero(np.diff(self.target_lengths[order])) + 1
        for group in np.split(order, changes):
            full, rest = self._cut(group)
            batches.extend(full)
            leftovers.append(rest)
        pool = np.concatenate(leftovers) if leftovers else order
        pool = pool[self._sorted(pool)]
        full, rest = self._cut(pool)
        batches.extend(full)
        if len(rest):
            batches.append(rest)
        return batches

    def tokens(self, rows: NDArray[np.int64]) -> int:
        """The target tokens of these rows without padding, or whatever else the loss has terms for."""
        return int(self.target_tokens[rows].sum())

    def width(self, column: str, rows: NDArray[np.int64]) -> int:
        """The width of column "source" or "target" in a batch of these rows."""
        return min(int(getattr(self, f"{column}_lengths")[rows].max()), self.max_widths[column])

    def rows_for(self, source: int, target: int) -> int:
        """How many rows of this padded shape fill the budget."""
        return self.batch_rows or max(1, self.budget // max(source, target))

    def largest(self) -> tuple[int, int, int]:
        """Rows, source width and target width of the batch that needs most memory."""
        source, target = int(self.source_lengths.max()), int(self.target_lengths.max())
        return self.rows_for(source, target), source, target

    def _sorted(self, rows: NDArray[np.int32]) -> NDArray[np.int64]:
        return np.argsort(self._rank[rows], kind="stable")

    def _cut(self, rows: NDArray[np.int32]) -> tuple[list[NDArray[np.int32]], NDArray[np.int32]]:
        """Full batches in order, and the rows that are left; rows come longest first."""
        batches = []
        start = 0
        while start < len(rows):
            target = int(self.target_lengths[rows[start]])
            source = int(self.source_lengths[rows[start]])
            size = self.rows_for(source, target)
            # Within one target length sources only get shorter; in the pool a later row may have a longer one.
            longest = int(self.source_lengths[rows[start : start + size]].max())
            size = self.rows_for(longest, target)
            if start + size > len(rows):
                break
            batches.append(rows[start : start + size])
            start += size
        return batches, rows[start:]


def read_batch(
    store: TokenStore, rows: NDArray[np.int64], plan: BatchPlan | None = None, collator: Collator = PAIR_COLLATOR
) -> Batch:
    """Read rows of a store as one batch; with a plan by its collator, padded to its grid of lengths."""
    collator = collator if plan is None else plan.collator
    copies = None if store.copies is None else store.copies.rows(rows)
    widths = (None, None) if plan is None else (plan.width("source", rows), plan.width("target", rows))
    return collator.collate(store.source.rows(rows), store.target.rows(rows), copies, widths)


class VocabularyParts:
    """Consecutive parts of a corpus with few different target words each (Jean et al. 2015, section 3).

    Part i has the vocabulary V_i: all its words and <eos>, at most `size`. A part ends before the row whose words would
    not fit any more. Where `size` reaches the whole vocabulary, there is one part with all words.
    """

    def __init__(self, targets: Column, vocabulary: int, size: int) -> None:
        self.words: list[NDArray[np.int64]] = []
        starts = [0]
        if size < vocabulary:
            known = {EOS}
            for number, row in enumerate(rows_of_column(targets)):
                words = {EOS, *row}
                if len(words) > size:
                    most = max(len({EOS, *other}) for other in rows_of_column(targets))
                    raise ConfigError(
                        f"model.softmax.size: found {size}, but a target has {most} different tokens with <eos>; "
                        f"expected at least {most}"
                    )
                if len(known | words) > size:
                    self._close(known)
                    starts.append(number)
                    known = words
                else:
                    known |= words
            self._close(known)
        else:
            self.words.append(np.arange(vocabulary))
        self.of_row = (np.searchsorted(starts, np.arange(len(targets)), "right") - 1).astype(np.int32)  # (N,)

    def _close(self, words: set[int]) -> None:
        self.words.append(np.array(sorted(words), np.int64))

    def __len__(self) -> int:
        return len(self.words)


def rows_of_column(column: Column) -> Iterator[list[int]]:
    """All rows, some read at a time."""
    for first in range(0, len(column), ROWS):
        offsets = column.offsets(first, min(first + ROWS, len(column)))
        tokens = column.tokens(int(offsets[0]), int(offsets[-1])).tolist()
        bounds = (offsets - offsets[0]).tolist()
        yield from (tokens[start:end] for start, end in pairwise(bounds))
