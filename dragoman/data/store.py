"""Stores of rows on disk, read row by row: their memory does not grow with the corpus.

Rows are tokens, or features of media files: recordings, text lines and pictures are all rows (T, F). Files are decoded
once, when their store is written. A batch of them has a budget of frames instead of tokens.
"""

from __future__ import annotations

import json
import os
import struct
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.base import DataError
from dragoman.data.examples import Fault
from dragoman.data.media.files import MediaError, read_many, reads_folders
from dragoman.data.rows import FlatRows, TokensWithCopies

COLUMNS = ("source", "target")
COPIES = "copies"  # a third column, of models that copy words
LENGTHS_CHUNK = 1 << 20
_INFO, _VALUES, _SPANS, _PATHS = "features.json", "features.values", "features.spans", "features.paths"
WEIGHTS = "weights"  # file of a store whose rows are not used equally often


def read_at(handle: int, size: int, offset: int) -> bytes:
    """Bytes of an open file, in one system call where there is one (pread); raises DataError if there are fewer."""
    data = _read_at(handle, size, offset)
    while len(data) < size:  # a signal or a network file system may cut a call short
        more = _read_at(handle, size - len(data), offset + len(data))
        if not more:
            raise DataError(
                f"token store: found {len(data)} bytes of a row, expected {size}; another process has cut the store "
                "short. Run the same command again to build it anew"
            )
        data += more
    return data


def _read_at(handle: int, size: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(handle, size, offset)
    os.lseek(handle, offset, os.SEEK_SET)
    return os.read(handle, size)


def _open(owner: Any, path: Path) -> int:
    """A handle to read from, closed when its owner is collected."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    weakref.finalize(owner, os.close, handle)
    return handle


_SPAN = struct.Struct("=qq")  # start and end of a row


class Column:
    """The source or target column of a store: row i is tokens[offsets[i]:offsets[i+1]].

    Rows are read one by one rather than memory-mapped. That is as fast, and a map would count a whole folio, a megabyte
    on a recent Linux, as resident memory for every row that was read.
    """

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self._tokens = _open(self, folder / f"{name}.tokens")
        self._offsets = _open(self, folder / f"{name}.offsets")
        self._count = os.fstat(self._offsets).st_size // 8 - 1

    def __len__(self) -> int:
        return self._count

    def lengths(self) -> NDArray[np.int32]:
        out = np.empty(self._count, np.int32)
        for start in range(0, len(out), LENGTHS_CHUNK):
            chunk = out[start : start + LENGTHS_CHUNK]
            chunk[:] = np.diff(self.offsets(start, start + len(chunk)))
        return out

    def offset(self, row: int) -> int:
        """How many tokens come before a row."""
        return int(self.offsets(row, row)[0])

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """How many tokens come before each of the rows first … last; `last` may be one past the end."""
        return np.frombuffer(read_at(self._offsets, 8 * (last - first + 1), 8 * first), np.int64)

    def tokens(self, start: int, end: int) -> NDArray[Any]:
        """Tokens start … end−1 of all rows, concatenated."""
        width = self.dtype.itemsize
        return np.frombuffer(read_at(self._tokens, (end - start) * width, start * width), self.dtype)

    def rows(self, indices: NDArray[np.int64] | Sequence[int]) -> list[NDArray[Any]]:
        width, out = self.dtype.itemsize, []
        for index in indices:
            start, end = _SPAN.unpack(read_at(self._offsets, 16, 8 * int(index)))
            out.append(np.frombuffer(read_at(self._tokens, (end - start) * width, start * width), self.dtype))
        return out


def source_rows(store: TokenStore, indices: Sequence[int]) -> list[list[Any]]:
    """These sources as a codec encodes them, with their copies if the store has them."""
    rows = [row.tolist() for row in store.source.rows(indices)]
    if store.copies is None:
        return rows
    copies = store.copies.rows(indices)
    return [TokensWithCopies(row, own.tolist()) for row, own in zip(rows, copies, strict=True)]


class TokenStore:
    """Pairs of token rows on disk, opened for reading."""

    source: Any  # a Column; of media files FeatureRows

    def __init__(self, folder: Path) -> None:
        dtypes = json.loads((folder / "store.json").read_text(encoding="utf-8"))
        self.folder = folder
        self.source = Column(folder, "source", dtypes["source"])
        self.target = Column(folder, "target", dtypes["target"])
        # The numbers of copies at the positions of the sources, where a model copies words (`Batch.copies`).
        self.copies = Column(folder, COPIES, dtypes[COPIES]) if COPIES in dtypes else None
        path = folder / WEIGHTS
        # How often an epoch has each row; None: all once.
        self.weights = np.fromfile(path, np.float32) if path.exists() else None

    def __len__(self) -> int:
        return len(self.target)


class StoreWriter:
    """Writes a store; no rows stay in memory."""

    def __init__(
        self, folder: Path, source_vocabulary: int, target_vocabulary: int, dtypes: Mapping[str, str] | None = None
    ) -> None:
        """`dtypes`: of columns whose values are not token ids; with "copies" the store has that column too."""
        folder.mkdir(parents=True)
        self.folder = folder
        self.dtypes = {
            column: "uint16" if size <= 1 << 16 else "uint32"
            for column, size in zip(COLUMNS, (source_vocabulary, target_vocabulary), strict=True)
        } | dict(dtypes or {})
        self.tokens = {column: (folder / f"{column}.tokens").open("wb") for column in self.dtypes}
        self.offsets = {column: (folder / f"{column}.offsets").open("wb") for column in self.dtypes}
        self.ends = dict.fromkeys(self.dtypes, 0)
        for file in self.offsets.values():
            file.write(np.zeros(1, np.int64).tobytes())

    def add(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> None:
        columns = {"source": sources, "target": targets}
        if COPIES in self.dtypes:
            columns[COPIES] = [row.copies for row in sources if isinstance(row, TokensWithCopies)]
            assert len(columns[COPIES]) == len(sources)
        self.add_flat({column: FlatRows.of(rows, self.dtypes[column]) for column, rows in columns.items()})

    def add_flat(self, columns: Mapping[str, FlatRows]) -> None:
        for column, (values, lengths) in columns.items():
            ends = self.ends[column] + np.cumsum(lengths)
            self.tokens[column].write(values.astype(self.dtypes[column], copy=False).tobytes())
            self.offsets[column].write(ends.astype(np.int64).tobytes())
            if len(ends):
                self.ends[column] = int(ends[-1])

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (*self.tokens.values(), *self.offsets.values()):
            file.close()
        if kind is None:
            (self.folder / "store.json").write_text(json.dumps(self.dtypes), encoding="utf-8")


def write_features(
    folder: Path, paths: Sequence[str], decoder: Any, progress: Callable[[int], None] = lambda done: None
) -> list[Fault]:
    """Decode media files into a store, row i for path i. Returns the faults of files that cannot be used.

    `decoder` are the settings of features, such as AudioConfig.

    The row of a file with a fault is empty and must not come into a batch. Each archive is read once, from front to
    back, and one file is in memory at a time. `progress` is called with the number of files that are done.
    """
    folder.mkdir(parents=True)
    faults: dict[int, Fault] = {}
    spans = np.zeros((len(paths), 2), np.int64)  # start and end of every row, counted in frames
    end = 0
    with (folder / _VALUES).open("wb") as file:
        for done, (index, data) in enumerate(read_many(paths, reads_folders(decoder)), 1):
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
        self._values = _open(self, folder / _VALUES)

    def __len__(self) -> int:
        return len(self._spans)

    def paths(self) -> list[str]:
        return [json.loads(line) for line in self._paths.read_text(encoding="utf-8").splitlines()]

    def lengths(self) -> NDArray[np.int32]:
        """Frames of every row; 0 for a file with a fault."""
        return (self._spans[:, 1] - self._spans[:, 0]).astype(np.int32)

    def length(self, row: int) -> int:
        return int(self._spans[row, 1] - self._spans[row, 0])

    def rows(self, indices: NDArray[np.int64] | Sequence[int]) -> list[NDArray[Any]]:
        width, out = self.dtype.itemsize * self.features, []
        for index in indices:
            start, end = self._spans[int(index)].tolist()
            data = read_at(self._values, (end - start) * width, start * width)
            out.append(np.frombuffer(data, self.dtype).reshape(-1, self.features))
        return out


def feature_statistics(column: FeatureColumn, rows: Iterable[int] | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Mean and standard deviation (F,) over the frames of all or some rows; one row is in memory at a time."""
    count, total, squares = 0, np.zeros(column.features), np.zeros(column.features)
    for row in range(len(column)) if rows is None else rows:
        frames = column.rows([row])[0].astype(np.float64) * column.step
        count, total, squares = count + len(frames), total + frames.sum(0), squares + (frames**2).sum(0)
    mean = total / max(count, 1)
    deviation = np.sqrt(np.maximum(squares / max(count, 1) - mean**2, 0.0))
    return mean.astype(np.float32), deviation.astype(np.float32)


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
        return self.column.rows(self.numbers[np.asarray(indices, np.int64)])

    def path(self, row: int) -> str:
        """The media file of a row."""
        return self.column.paths()[int(self.numbers[row])]


class MediaStore(TokenStore):
    """Feature rows as sources and token rows as targets.

    On disk it is a token store whose sources are row numbers of the feature store beside it.
    """

    def __init__(self, folder: Path, column: FeatureColumn) -> None:
        super().__init__(folder)
        self.source = FeatureRows(column, self.source.tokens(0, len(self)).astype(np.int64))
