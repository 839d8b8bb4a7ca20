"""A store of feature rows on disk, and batches of them: recordings, text lines and pictures alike are rows (T, F).

Files are decoded once, when the store is written; training reads rows from the store one by one, so memory stays
flat. What is a token budget for text is a budget of frames here.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.data.batches import Batch, BatchPlan, EpochPlan, padded
from dragoman.data.media import MediaError, read_many
from dragoman.data.readers import Fault
from dragoman.data.store import Column, read_at

_ABOUT, _NUMBERS, _SPANS = "features.json", "features.numbers", "features.spans"


class Decoder(Protocol):
    """What makes features of a file's bytes: AudioConfig, LineImageConfig or PictureConfig."""

    dtype: ClassVar[str]
    step: ClassVar[float]

    @property
    def features(self) -> int:
        """Numbers a frame."""

    def decode(self, data: bytes, place: str) -> NDArray[Any]:
        """The features (T, F), or a MediaError that names the place."""


def write_features(
    folder: Path, places: Sequence[str], decoder: Decoder, note: Callable[[int], None] = lambda done: None
) -> list[Fault]:
    """Decode what stands at these locations into a store, row i for location i; what cannot be used is returned.

    A row with a fault is there but empty, so that no other moves: leave it out of the batches. Archives are read
    once, front to back, and one file is in memory at a time. `note` hears how many files are done.
    """
    folder.mkdir(parents=True)
    faults: dict[int, Fault] = {}
    spans = np.zeros((len(places), 2), np.int64)  # where rows begin and end, counted in frames
    end = 0
    with (folder / _NUMBERS).open("wb") as file:
        for done, (number, found) in enumerate(read_many(places), 1):
            try:
                if isinstance(found, Fault):
                    faults[number] = found
                else:
                    rows = decoder.decode(found, places[number])
                    file.write(np.ascontiguousarray(rows, decoder.dtype).tobytes())
                    spans[number] = end, end + len(rows)
                    end += len(rows)
            except MediaError as error:
                faults[number] = error.fault
            note(done)
    (folder / _SPANS).write_bytes(spans.tobytes())
    about = {"dtype": decoder.dtype, "features": decoder.features, "step": decoder.step}
    (folder / _ABOUT).write_text(json.dumps(about), encoding="utf-8")  # last: without it there is no store
    return [faults[number] for number in sorted(faults)]


class FeatureColumn:
    """Feature rows on disk, opened for reading; what a `Column` is for tokens."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        self.features: int = about["features"]
        self.step: float = about["step"]
        self.dtype = np.dtype(about["dtype"])
        self._spans = np.fromfile(folder / _SPANS, np.int64).reshape(-1, 2)
        self._numbers = os.open(folder / _NUMBERS, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._numbers)

    def __len__(self) -> int:
        return len(self._spans)

    def lengths(self) -> NDArray[np.int32]:
        """Frames in every row; 0: the row had a fault."""
        return (self._spans[:, 1] - self._spans[:, 0]).astype(np.int32)

    def rows(self, indices: NDArray[np.int64] | Sequence[int]) -> list[NDArray[Any]]:
        """The rows asked for, (T, F) each, as they were stored."""
        width, out = self.dtype.itemsize * self.features, []
        for index in indices:
            start, end = self._spans[int(index)].tolist()
            data = read_at(self._numbers, (end - start) * width, start * width)
            out.append(np.frombuffer(data, self.dtype).reshape(-1, self.features))
        return out


def feature_statistics(column: FeatureColumn) -> tuple[Tensor, Tensor]:
    """Mean and deviation (F,) of every feature over all frames, as batches have them; one row in memory at a time."""
    count, total, squares = 0, np.zeros(column.features), np.zeros(column.features)
    for number in range(len(column)):
        row = column.rows([number])[0].astype(np.float64) * column.step
        count, total, squares = count + len(row), total + row.sum(0), squares + (row**2).sum(0)
    mean = total / max(count, 1)
    deviation = np.sqrt(np.maximum(squares / max(count, 1) - mean**2, 0.0))
    return torch.from_numpy(mean).float(), torch.from_numpy(deviation).float()


def padded_features(rows: Sequence[NDArray[Any]], step: float = 1.0, width: int | None = None) -> tuple[Tensor, Tensor]:
    """Rows (T, F) as numbers (B, T', F) in float32, zero beyond their ends, and the mask (B, T')."""
    width = width or max(len(row) for row in rows)
    out = np.zeros((len(rows), width, rows[0].shape[1]), np.float32)
    lengths = np.array([len(row) for row in rows])
    for place, row in enumerate(rows):
        np.multiply(row, np.float32(step), out=out[place, : len(row)], casting="unsafe")
    mask = np.arange(width) < lengths[:, None]
    return torch.from_numpy(out), torch.from_numpy(mask)


def feature_batch(
    rows: Sequence[NDArray[Any]], targets: Sequence[Sequence[int]] | None = None, step: float = 1.0
) -> Batch:
    """A batch from features in memory; without targets for prediction."""
    source, mask = padded_features(rows, step)
    target = padded(targets) if targets is not None else torch.empty(len(rows), 0, dtype=torch.long)
    return Batch(source, mask, target)


class FeatureStore(NamedTuple):
    """Feature rows and the token rows that answer them."""

    source: FeatureColumn
    target: Column

    def __len__(self) -> int:
        return len(self.source)


class _Frames(NamedTuple):
    """The lengths of rows to a BatchPlan, which counts an <eos> that frames do not have."""

    column: FeatureColumn
    usable: NDArray[np.int64]

    def lengths(self) -> NDArray[np.int32]:
        return self.column.lengths()[self.usable] - 1


class _Tokens(NamedTuple):
    column: Column
    usable: NDArray[np.int64]

    def lengths(self) -> NDArray[np.int32]:
        return self.column.lengths()[self.usable]


class _Exchanged(NamedTuple):
    """The two sides in each other's place: a BatchPlan looks at its targets first, and here frames are what is long."""

    source: _Tokens
    target: _Frames


class FramePlan:
    """Cuts a store into batches of at most `budget` frames, padding included; rows that had a fault are left out.

    It is the plan of token batches with frames in the place of target tokens: sorted by rounded length, an order that
    follows from (seed, epoch) alone, and few shapes.
    """

    def __init__(self, store: FeatureStore, budget: int, seed: int, max_rows: int | None = None) -> None:
        assert len(store.source) == len(store.target), "rows of features and of targets must answer each other"
        self.usable = np.flatnonzero(store.source.lengths()).astype(np.int64)
        view = _Exchanged(_Tokens(store.target, self.usable), _Frames(store.source, self.usable))
        self._plan = BatchPlan(view, budget, seed, max_rows)  # type: ignore[arg-type]
        self._place = np.full(len(store), -1, np.int64)
        self._place[self.usable] = np.arange(len(self.usable))
        self.target_tokens = store.target.lengths() + 1  # <eos> counts

    def __len__(self) -> int:
        return len(self.usable)

    def epoch(self, epoch: int) -> EpochPlan:
        """The batches of one epoch, a pure function of the seed and its number."""
        if not len(self):
            return EpochPlan(np.empty(0, np.int32), np.zeros(1, np.int64))
        found = self._plan.epoch(epoch)
        return EpochPlan(self.usable[found.rows].astype(np.int32), found.bounds)

    def tokens(self, rows: NDArray[np.int64]) -> int:
        """Real target tokens in these rows."""
        return int(self.target_tokens[rows].sum())

    def largest(self) -> tuple[int, int, int]:
        """Rows, frames and target length of the batch that needs most memory."""
        rows, target, frames = self._plan.largest()
        return rows, min(frames, self._plan.longest["target"]), target

    def widths(self, rows: NDArray[np.int64]) -> tuple[int, int]:
        """Frames and target tokens that these rows are padded to."""
        plan, places = self._plan, self._place[rows]
        frames = min(int(plan.target_lengths[places].max()), plan.longest["target"])
        return frames, min(int(plan.source_lengths[places].max()), plan.longest["source"])


def gather_features(store: FeatureStore, rows: NDArray[np.int64], plan: FramePlan | None = None) -> Batch:
    """Read rows of a store as one batch, padded to the plan's grid if one is given."""
    frames, tokens = plan.widths(rows) if plan is not None else (None, None)
    source, mask = padded_features(store.source.rows(rows), store.source.step, frames)
    return Batch(source, mask, padded(store.target.rows(rows), tokens))
