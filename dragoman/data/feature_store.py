"""A store of feature rows on disk: recordings, text lines and pictures alike are rows (T, F).

Files are decoded once, when the store is written; training reads rows from the store one by one, so memory stays
flat. What is a token budget for text is a budget of frames here.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.data.examples import Fault
from dragoman.data.media.archives import MediaError, read_many
from dragoman.data.store import TokenStore, read_at

_ABOUT, _NUMBERS, _SPANS, _PLACES = "features.json", "features.numbers", "features.spans", "features.places"


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
    (folder / _PLACES).write_text("".join(json.dumps(place) + "\n" for place in places), encoding="utf-8")
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
        self._places = folder / _PLACES
        self._numbers = os.open(folder / _NUMBERS, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._numbers)

    def __len__(self) -> int:
        return len(self._spans)

    def places(self) -> list[str]:
        """The location that every row was read from."""
        return [json.loads(line) for line in self._places.read_text(encoding="utf-8").splitlines()]

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


def feature_statistics(column: FeatureColumn, numbers: Iterable[int] | None = None) -> tuple[Tensor, Tensor]:
    """Mean and deviation (F,) of every feature over all frames, or those of some rows; one row in memory at a time."""
    count, total, squares = 0, np.zeros(column.features), np.zeros(column.features)
    for number in range(len(column)) if numbers is None else numbers:
        row = column.rows([number])[0].astype(np.float64) * column.step
        count, total, squares = count + len(row), total + row.sum(0), squares + (row**2).sum(0)
    mean = total / max(count, 1)
    deviation = np.sqrt(np.maximum(squares / max(count, 1) - mean**2, 0.0))
    return torch.from_numpy(mean).float(), torch.from_numpy(deviation).float()


class FeatureRows:
    """Rows of a store that are rows of features, some perhaps several times: a picture has several captions."""

    def __init__(self, column: FeatureColumn, numbers: NDArray[np.int64]) -> None:
        """`numbers` says which row of features each is."""
        self.column, self.numbers = column, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def lengths(self) -> NDArray[np.int32]:
        """Frames in every row."""
        return self.column.lengths()[self.numbers]

    def rows(self, indices: NDArray[np.int64] | Sequence[int]) -> list[NDArray[Any]]:
        """The rows asked for, (T, F) each, as they were stored."""
        return self.column.rows(self.numbers[np.asarray(indices, np.int64)])


class MediaStore:
    """Feature rows and the token rows that answer them; what a `TokenStore` is for text.

    On disk it is a store of tokens whose sources are the numbers of feature rows, which stand beside it.
    """

    def __init__(self, folder: Path, column: FeatureColumn) -> None:
        tokens = TokenStore(folder)
        self.folder = folder
        self.source = FeatureRows(column, tokens.source.tokens(0, len(tokens)).astype(np.int64))
        self.target = tokens.target

    def __len__(self) -> int:
        return len(self.target)
