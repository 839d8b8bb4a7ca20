"""A store of feature rows on disk: recordings, text lines and pictures are all rows (T, F).

The media files are decoded once, when the store is written. Training reads the rows one by one, so its memory does not
grow with the corpus. A batch has a budget of frames instead of tokens.
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
from dragoman.data.media.files import MediaError, read_many
from dragoman.data.store import TokenStore, read_at

_INFO, _VALUES, _SPANS, _PATHS = "features.json", "features.values", "features.spans", "features.paths"


class MediaDecoder(Protocol):
    """Makes features of a file's content: AudioConfig, LineImageConfig or PictureConfig."""

    dtype: ClassVar[str]
    step: ClassVar[float]

    @property
    def features(self) -> int:
        """Numbers per frame."""

    def decode(self, data: bytes, path: str) -> NDArray[Any]:
        """The features (T, F); raises MediaError with the path."""


def write_features(
    folder: Path, paths: Sequence[str], decoder: MediaDecoder, progress: Callable[[int], None] = lambda done: None
) -> list[Fault]:
    """Decode media files into a store, row i for path i. Returns the faults of files that cannot be used.

    The row of a file with a fault is empty and must not come into a batch. Each archive is read once, from front to
    back, and one file is in memory at a time. `progress` is called with the number of files that are done.
    """
    folder.mkdir(parents=True)
    faults: dict[int, Fault] = {}
    spans = np.zeros((len(paths), 2), np.int64)  # start and end of every row, counted in frames
    end = 0
    with (folder / _VALUES).open("wb") as file:
        for done, (index, data) in enumerate(read_many(paths), 1):
            try:
                if isinstance(data, Fault):
                    faults[index] = data
                else:
                    frames = decoder.decode(data, paths[index])
                    file.write(np.ascontiguousarray(frames, decoder.dtype).tobytes())
                    spans[index] = end, end + len(frames)
                    end += len(frames)
            except MediaError as error:
                faults[index] = error.fault
            progress(done)
    (folder / _SPANS).write_bytes(spans.tobytes())
    (folder / _PATHS).write_text("".join(json.dumps(path) + "\n" for path in paths), encoding="utf-8")
    info = {"dtype": decoder.dtype, "features": decoder.features, "step": decoder.step}
    (folder / _INFO).write_text(json.dumps(info), encoding="utf-8")  # last: without it there is no store
    return [faults[index] for index in sorted(faults)]


class FeatureColumn:
    """Feature rows on disk, opened for reading."""

    def __init__(self, folder: Path) -> None:
        info = json.loads((folder / _INFO).read_text(encoding="utf-8"))
        self.features: int = info["features"]
        self.step: float = info["step"]
        self.dtype = np.dtype(info["dtype"])
        self._spans = np.fromfile(folder / _SPANS, np.int64).reshape(-1, 2)
        self._paths = folder / _PATHS
        self._values = os.open(folder / _VALUES, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._values)

    def __len__(self) -> int:
        return len(self._spans)

    def paths(self) -> list[str]:
        """The path that every row was read from."""
        return [json.loads(line) for line in self._paths.read_text(encoding="utf-8").splitlines()]

    def lengths(self) -> NDArray[np.int32]:
        """Frames of every row; 0 for a file with a fault."""
        return (self._spans[:, 1] - self._spans[:, 0]).astype(np.int32)

    def rows(self, indices: NDArray[np.int64] | Sequence[int]) -> list[NDArray[Any]]:
        """These rows as they are stored, (T, F) each."""
        width, out = self.dtype.itemsize * self.features, []
        for index in indices:
            start, end = self._spans[int(index)].tolist()
            data = read_at(self._values, (end - start) * width, start * width)
            out.append(np.frombuffer(data, self.dtype).reshape(-1, self.features))
        return out


def feature_statistics(column: FeatureColumn, rows: Iterable[int] | None = None) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (F,) over the frames of all or some rows; one row is in memory at a time."""
    count, total, squares = 0, np.zeros(column.features), np.zeros(column.features)
    for row in range(len(column)) if rows is None else rows:
        frames = column.rows([row])[0].astype(np.float64) * column.step
        count, total, squares = count + len(frames), total + frames.sum(0), squares + (frames**2).sum(0)
    mean = total / max(count, 1)
    deviation = np.sqrt(np.maximum(squares / max(count, 1) - mean**2, 0.0))
    return torch.from_numpy(mean).float(), torch.from_numpy(deviation).float()


class FeatureRows:
    """A source column of feature rows. A row may occur several times: a picture has several captions."""

    def __init__(self, column: FeatureColumn, numbers: NDArray[np.int64]) -> None:
        """`numbers[i]` is the feature row of row i."""
        self.column, self.numbers = column, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def lengths(self) -> NDArray[np.int32]:
        return self.column.lengths()[self.numbers]

    def rows(self, indices: NDArray[np.int64] | Sequence[int]) -> list[NDArray[Any]]:
        """These rows as they are stored, (T, F) each."""
        return self.column.rows(self.numbers[np.asarray(indices, np.int64)])


class MediaStore:
    """Feature rows as sources and token rows as targets.

    On disk it is a token store whose sources are row numbers of the feature store beside it.
    """

    def __init__(self, folder: Path, column: FeatureColumn) -> None:
        tokens = TokenStore(folder)
        self.folder = folder
        self.source = FeatureRows(column, tokens.source.tokens(0, len(tokens)).astype(np.int64))
        self.target, self.copies = tokens.target, None

    def __len__(self) -> int:
        return len(self.target)
