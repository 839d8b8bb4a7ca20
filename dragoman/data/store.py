"""A store of token rows on disk: whatever the size of the corpus, little of it is in memory."""

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

COLUMNS = ("source", "target")
LENGTHS_AT_ONCE = 1 << 20


def read_at(handle: int, size: int, offset: int) -> bytes:
    """Bytes of an open file; in one call where the system has one for it."""
    if hasattr(os, "pread"):
        return os.pread(handle, size, offset)
    os.lseek(handle, offset, os.SEEK_SET)
    return os.read(handle, size)


_SPAN = struct.Struct("=qq")  # where a row begins and ends


class Column:
    """One side of a store: row i is tokens[offsets[i]:offsets[i+1]].

    Rows are read one by one rather than mapped into memory: that is as fast, and a map would count whole folios, a
    megabyte each on a recent Linux, for every row that was touched.
    """

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self._offsets_path = folder / f"{name}.offsets"
        self._tokens = self._opened(folder / f"{name}.tokens")
        self._offsets = self._opened(self._offsets_path)
        self._count = os.fstat(self._offsets).st_size // 8 - 1

    def _opened(self, path: Path) -> int:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, handle)
        return handle

    def __len__(self) -> int:
        return self._count

    def lengths(self) -> NDArray[np.int32]:
        """Tokens in every row."""
        out = np.empty(self._count, np.int32)
        for start in range(0, self._count, LENGTHS_AT_ONCE):
            part = out[start : start + LENGTHS_AT_ONCE]
            part[:] = np.diff(np.fromfile(self._offsets_path, np.int64, len(part) + 1, offset=8 * start))
        return out

    def offset(self, row: int) -> int:
        """How many tokens stand before a row."""
        return int(self.offsets(row, row)[0])

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """The same for rows first … last, of which `last` may be one past the end."""
        return np.frombuffer(read_at(self._offsets, 8 * (last - first + 1), 8 * first), np.int64)

    def tokens(self, start: int, end: int) -> NDArray[Any]:
        """All rows in a line: their tokens from one place to another."""
        width = self.dtype.itemsize
        return np.frombuffer(read_at(self._tokens, (end - start) * width, start * width), self.dtype)

    def rows(self, indices: NDArray[np.int64] | Sequence[int]) -> list[NDArray[Any]]:
        """The rows asked for."""
        width, out = self.dtype.itemsize, []
        for index in indices:
            start, end = _SPAN.unpack(read_at(self._offsets, 16, 8 * int(index)))
            out.append(np.frombuffer(read_at(self._tokens, (end - start) * width, start * width), self.dtype))
        return out


class StoredRows(Protocol):
    """One side of a store, whatever its rows hold."""

    def __len__(self) -> int: ...

    def lengths(self) -> NDArray[np.int32]:
        """How long every row is."""

    def rows(self, indices: NDArray[np.int64] | Sequence[int]) -> list[NDArray[Any]]:
        """The rows asked for."""


class Store(Protocol):
    """Sources and their targets on disk."""

    @property
    def source(self) -> StoredRows:
        """What is read."""

    @property
    def target(self) -> Column:
        """What is learned to be written."""

    def __len__(self) -> int: ...


class TokenStore:
    """Pairs of token rows on disk, opened for reading."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / "store.json").read_text(encoding="utf-8"))
        self.folder = folder
        self.source = Column(folder, "source", about["source"])
        self.target = Column(folder, "target", about["target"])

    def __len__(self) -> int:
        return len(self.source)


class StoreWriter:
    """Writes a store row by row; nothing is held in memory."""

    def __init__(
        self, folder: Path, source_vocabulary: int, target_vocabulary: int, dtypes: Mapping[str, str] | None = None
    ) -> None:
        """`dtypes` of sides whose numbers the size of a vocabulary does not bound."""
        folder.mkdir(parents=True)
        self.folder = folder
        self.dtypes = {
            side: "uint16" if size <= 1 << 16 else "uint32"
            for side, size in zip(COLUMNS, (source_vocabulary, target_vocabulary), strict=True)
        } | dict(dtypes or {})
        self.tokens = {side: (folder / f"{side}.tokens").open("wb") for side in COLUMNS}
        self.offsets = {side: (folder / f"{side}.offsets").open("wb") for side in COLUMNS}
        self.ends = dict.fromkeys(COLUMNS, 0)
        for file in self.offsets.values():
            file.write(np.zeros(1, np.int64).tobytes())

    def add(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> None:
        """Append as many rows to both sides."""
        for side, rows in zip(COLUMNS, (sources, targets), strict=True):
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            flat = np.fromiter(chain.from_iterable(rows), self.dtypes[side], int(lengths.sum()))
            ends = self.ends[side] + np.cumsum(lengths)
            self.tokens[side].write(flat.tobytes())
            self.offsets[side].write(ends.astype(np.int64).tobytes())
            if len(ends):
                self.ends[side] = int(ends[-1])

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (*self.tokens.values(), *self.offsets.values()):
            file.close()
        if kind is None:
            (self.folder / "store.json").write_text(json.dumps(self.dtypes), encoding="utf-8")
