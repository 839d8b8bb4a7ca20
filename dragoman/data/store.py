"""A store of token rows on disk, read row by row: its memory does not grow with the corpus."""

from __future__ import annotations

import json
import os
import struct
import weakref
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.data.batch import TokensWithCopies
from dragoman.errors import DataError

COLUMNS = ("source", "target")
COPIES = "copies"  # a third column, of models that copy words
LENGTHS_CHUNK = 1 << 20
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


_SPAN = struct.Struct("=qq")  # start and end of a row


class Column:
    """The source or target column of a store: row i is tokens[offsets[i]:offsets[i+1]].

    Rows are read one by one rather than memory-mapped. That is as fast, and a map would count a whole folio, a megabyte
    on a recent Linux, as resident memory for every row that was read.
    """

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self._offsets_path = folder / f"{name}.offsets"
        self._tokens = self._open(folder / f"{name}.tokens")
        self._offsets = self._open(self._offsets_path)
        self._count = os.fstat(self._offsets).st_size // 8 - 1

    def _open(self, path: Path) -> int:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, handle)
        return handle

    def __len__(self) -> int:
        return self._count

    def lengths(self) -> NDArray[np.int32]:
        """The number of tokens of every row."""
        out = np.empty(self._count, np.int32)
        for start in range(0, self._count, LENGTHS_CHUNK):
            chunk = out[start : start + LENGTHS_CHUNK]
            chunk[:] = np.diff(np.fromfile(self._offsets_path, np.int64, len(chunk) + 1, offset=8 * start))
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


class StoredRows(Protocol):
    """A column of a store, whatever its rows hold."""

    def __len__(self) -> int: ...

    def lengths(self) -> NDArray[np.int32]:
        """The length of every row."""

    def rows(self, indices: NDArray[np.int64] | Sequence[int]) -> list[NDArray[Any]]:
        """These rows."""


class Store(Protocol):
    """Sources and targets on disk."""

    @property
    def source(self) -> StoredRows:
        """The source column."""

    @property
    def target(self) -> Column:
        """The target column."""

    @property
    def copies(self) -> Column | None:
        """The numbers of copies at the positions of the sources, where a model copies words (`Batch.copies`)."""

    def __len__(self) -> int: ...


def source_rows(store: Store, indices: Sequence[int]) -> list[list[Any]]:
    """These sources as a codec encodes them, with their copies if the store has them."""
    rows = [row.tolist() for row in store.source.rows(indices)]
    if store.copies is None:
        return rows
    copies = store.copies.rows(indices)
    return [TokensWithCopies(row, own.tolist()) for row, own in zip(rows, copies, strict=True)]


class TokenStore:
    """Pairs of token rows on disk, opened for reading."""

    def __init__(self, folder: Path) -> None:
        dtypes = json.loads((folder / "store.json").read_text(encoding="utf-8"))
        self.folder = folder
        self.source = Column(folder, "source", dtypes["source"])
        self.target = Column(folder, "target", dtypes["target"])
        self.copies = Column(folder, COPIES, dtypes[COPIES]) if COPIES in dtypes else None

    @property
    def weights(self) -> NDArray[np.float32] | None:
        """How often an epoch has each row; None: all once."""
        path = self.folder / WEIGHTS
        return np.fromfile(path, np.float32) if path.exists() else None

    def __len__(self) -> int:
        return len(self.source)


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
        for column, rows in columns.items():
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            flat = np.fromiter(chain.from_iterable(rows), self.dtypes[column], int(lengths.sum()))
            ends = self.ends[column] + np.cumsum(lengths)
            self.tokens[column].write(flat.tobytes())
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
