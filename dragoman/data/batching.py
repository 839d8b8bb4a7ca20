"""Tokens → batches: token-budget batches of like lengths, their order computed from (seed, epoch) (FIELD G4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.data.store import Store
from dragoman.data.tokenizers.tokenizer import EOS, PAD


class Candidates(NamedTuple):
    """Several targets for each source and what each would cost, for training on the expected cost (FIELD G6)."""

    risks: Tensor  # (B, k); infinite: not a candidate
    sharpness: float  # α: candidates count by p^α


class Batch(NamedTuple):
    """Sources and targets as padded rows; rows of tokens end in <eos>."""

    source: Tensor  # (B, S); two texts that are read apart (B, 2, S); frames (B, S, F)
    source_mask: Tensor  # the same shape, of frames (B, S); True = real
    target: Tensor  # (B, T) or as the task's form says; with candidates (B·k, T)
    candidates: Candidates | None = None

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device; candidates are made where they are used."""
        source, mask, target = (part.to(device, non_blocking=True) for part in self[:3])
        return Batch(source, mask, target)

    def pin(self) -> Batch:
        """The same batch in page-locked memory, so that copying it to a GPU does not wait."""
        return Batch(self.source.pin_memory(), self.source_mask.pin_memory(), self.target.pin_memory())

    @property
    def likeness(self) -> tuple[Any, ...]:
        """What batches have in common that one captured step can read."""
        return self.source.shape, self.target.shape

    def read_from(self, source: Tensor, target: Tensor) -> Batch:
        """The same batch as a captured step reads it: from tensors that will hold others."""
        return Batch(source, real(source), target)


def padded(rows: Sequence[Sequence[int] | NDArray[Any]], width: int | None = None) -> Tensor:
    """Token rows, each with <eos> added, padded to one width: (B, S)."""
    width = width or max(len(row) for row in rows) + 1
    out = np.full((len(rows), width), PAD, dtype=np.int64)
    for place, row in enumerate(rows):
        out[place, : len(row)] = row
        out[place, len(row)] = EOS
    return torch.from_numpy(out)


def real(source: Tensor) -> Tensor:
    """Which places of a source are no padding: tokens but <pad>, numbers but NaN, frames but NaN or −1.

    Pictures are bytes and have no padding.
    """
    if source.dtype == torch.uint8:
        return torch.ones(source.shape[:2], dtype=torch.bool, device=source.device)
    if source.dtype == torch.int16:
        return source[:, :, 0] >= 0
    if source.is_floating_point():
        return ~(source[:, :, 0] if source.dim() == 3 else source).isnan()
    return source != PAD


Rows = Sequence[Sequence[Any] | NDArray[Any]]
Terms = Callable[[NDArray[np.int32], NDArray[np.int32]], NDArray[Any]]


class Side(Protocol):
    """How the rows of one column of a store become a tensor."""

    def cells(self, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        """How wide rows of these stored lengths are in a batch."""

    def terms(self, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        """How many terms of the loss rows of these stored lengths make, where they are targets."""

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        """The rows, padded to a width."""

    def example(self, rows: int, width: int) -> Tensor:
        """A tensor as `pad` makes it, for so many rows of this width."""


class TokenRows:
    """Tokens, each row with <eos> added."""

    def cells(self, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        """One more than there are tokens."""
        return lengths + 1

    terms = cells

    def pad(self, rows: Rows, width: int | None = None) -> Tensor:
        """(B, S)."""
        return padded(rows, width)

    def example(self, rows: int, width: int) -> Tensor:
        """The first token of the vocabulary over and over."""
        return padded([[4] * (width - 1)] * rows)


class Form(NamedTuple):
    """How rows of a store become a batch."""

    source: Side = TokenRows()
    target: Side = TokenRows()
    terms: Terms | None = None  # terms of the loss by the stored lengths of both; None: as the target says

    def batch(self, sources: Rows, targets: Rows | None = None) -> Batch:
        """A batch of rows in memory; without targets for prediction."""
        source = self.source.pad(sources)
        target = torch.empty(len(sources), 0, dtype=torch.int64) if targets is None else self.target.pad(targets)
        return Batch(source, real(source), target)

    def example(self, rows: int, source: int, target: int) -> Batch:
        """A batch of this shape, for measuring."""
        sources = self.source.example(rows, source)
        return Batch(sources, real(sources), self.target.example(rows, target))


PAIRS = Form()


def batch_of(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]] | None = None) -> Batch:
    """A batch from token lists in memory; without targets for prediction."""
    source = padded(sources)
    target = padded(targets) if targets is not None else source.new_empty(len(sources), 0)
    return Batch(source, source != PAD, target)


def rounded(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Lengths rounded up to a grid of four steps an octave: few shapes, about 6 % padding."""
    lengths = np.maximum(lengths, 1)
    step = 2 ** np.maximum(np.ceil(np.log2(lengths)).astype(np.int64) - 3, 0)
    out: NDArray[np.int64] = -(-lengths // step) * step
    return out


@dataclass(frozen=True)
class EpochPlan:
    """One epoch's batches: rows[bounds[i]:bounds[i+1]] make batch i."""

    rows: NDArray[np.int32]
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        return self.rows[self.bounds[index] : self.bounds[index + 1]].astype(np.int64)


class BatchPlan:
    """Cuts a store into batches of at most `budget` tokens a side, padding included.

    Rows are sorted by rounded target length and, within it, by source length; what does not fill a batch of its
    target length is pooled and cut the same way. So the number of rows follows from the shape, and only the last
    batch of an epoch is short. A row longer than the budget makes a batch of its own.
    """

    def __init__(self, store: Store, budget: int, seed: int, max_rows: int | None = None, form: Form = PAIRS) -> None:
        self.budget, self.seed, self.max_rows, self.form = budget, seed, max_rows, form
        stored = store.target.lengths()
        source, target = form.source.cells(store.source.lengths()), form.target.cells(stored)  # <eos> counts
        grid = rounded(np.arange(1 + max(source.max(initial=1), target.max(initial=1)))).astype(np.int32)
        self.source_lengths, self.target_lengths = grid[source], grid[target]
        self.target_tokens = form.terms(store.source.lengths(), stored) if form.terms else form.target.terms(stored)
        # Rounding up past the longest row would only pad, perhaps beyond what a model has positions for.
        self.longest = {"source": int(source.max(initial=1)), "target": int(target.max(initial=1))}
        # Longest first. The grid has so few steps that those of both sides fit into two bytes, which sort fast.
        steps, step = np.unique(-grid, return_inverse=True)
        step = step.astype(np.uint16)
        self._rank = step[target] * np.uint16(len(steps)) + step[source]

    def __len__(self) -> int:
        return len(self.source_lengths)

    def epoch(self, epoch: int) -> EpochPlan:
        """The batches of one epoch, a pure function of the seed and its number."""
        random = np.random.default_rng([self.seed, epoch])
        order = np.arange(len(self), dtype=np.int32)
        random.shuffle(order)
        order = order[self._sorted(order)]
        pieces: list[NDArray[np.int32]] = []
        leftovers: list[NDArray[np.int32]] = []
        changes = np.flatnonzero(np.diff(self.target_lengths[order])) + 1
        for group in np.split(order, changes):
            full, rest = self._cut(group)
            pieces.extend(full)
            leftovers.append(rest)
        pool = np.concatenate(leftovers) if leftovers else order
        pool = pool[self._sorted(pool)]
        full, rest = self._cut(pool)
        pieces.extend(full)
        if len(rest):
            pieces.append(rest)
        pieces = [pieces[place] for place in random.permutation(len(pieces))]
        bounds = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64)
        return EpochPlan(np.concatenate(pieces), bounds)

    def tokens(self, rows: NDArray[np.int64]) -> int:
        """Real target tokens in these rows, or how many terms of the loss they make."""
        return int(self.target_tokens[rows].sum())

    def width(self, column: str, rows: NDArray[np.int64]) -> int:
        """How wide the source or target of a batch of these rows is."""
        return min(int(getattr(self, f"{column}_lengths")[rows].max()), self.longest[column])

    def rows_for(self, source: int, target: int) -> int:
        """How many rows of this padded shape fill the budget."""
        rows = max(1, self.budget // max(source, target))
        return min(rows, self.max_rows) if self.max_rows else rows

    def largest(self) -> tuple[int, int, int]:
        """Rows, source and target length of the batch that needs most memory."""
        source, target = int(self.source_lengths.max()), int(self.target_lengths.max())
        return self.rows_for(source, target), source, target

    def _sorted(self, rows: NDArray[np.int32]) -> NDArray[np.int64]:
        return np.argsort(self._rank[rows], kind="stable")

    def _cut(self, rows: NDArray[np.int32]) -> tuple[list[NDArray[np.int32]], NDArray[np.int32]]:
        """Full batches in order, and the rest that does not fill one; rows come longest first."""
        pieces = []
        place = 0
        while place < len(rows):
            target = int(self.target_lengths[rows[place]])
            source = int(self.source_lengths[rows[place]])
            size = self.rows_for(source, target)
            # Within one target length sources only get shorter; in the pool a later row may have a longer one.
            longest = int(self.source_lengths[rows[place : place + size]].max())
            size = self.rows_for(longest, target)
            if place + size > len(rows):
                break
            pieces.append(rows[place : place + size])
            place += size
        return pieces, rows[place:]


def gather(store: Store, rows: NDArray[np.int64], plan: BatchPlan | None = None, form: Form = PAIRS) -> Batch:
    """Read rows of a store as one batch, padded to the plan's grid (and in its form) if one is given."""
    form = form if plan is None else plan.form

    def side(column: str) -> Tensor:
        stored = getattr(store, column).rows(rows)
        padder: Side = getattr(form, column)
        return padder.pad(stored, None if plan is None else plan.width(column, rows))

    source, target = side("source"), side("target")
    return Batch(source, real(source), target)
