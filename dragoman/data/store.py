"""A memory-mapped store of token rows: whatever the size of the corpus, little of it is in memory."""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

SIDES = ("source", "target")
RELEASE_AFTER = 1 << 16  # rows read before the pages they touched are given back


class Column:
    """One side of a store: row i is tokens[offsets[i]:offsets[i+1]]."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self._files: list[BinaryIO] = []
        self._token_map, tokens = self._map(folder / f"{name}.tokens", self.dtype)
        self._offset_map, offsets = self._map(folder / f"{name}.offsets", np.dtype(np.int64))
        self.tokens: NDArray[Any] = tokens
        self.offsets: NDArray[np.int64] = offsets
        self._read = 0

    def _map(self, path: Path, dtype: np.dtype[Any]) -> tuple[mmap.mmap | None, NDArray[Any]]:
        if path.stat().st_size == 0:
            return None, np.empty(0, dtype)
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return mapped, np.frombuffer(mapped, dtype)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self) -> NDArray[np.int64]:
        """Tokens in every row."""
        return np.diff(self.offsets)

    def rows(self, indices: NDArray[np.int64] | Sequence[int]) -> list[NDArray[Any]]:
        """The rows asked for, copied out of the map."""
        out = [self.tokens[self.offsets[i] : self.offsets[i + 1]].copy() for i in indices]
        self._read += len(out)
        if self._read >= RELEASE_AFTER:
            self.release()
        return out

    def release(self) -> None:
        """Give back the pages read so far; the operating system keeps them cached as long as it likes."""
        self._read = 0
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in (self._token_map, self._offset_map):
                if mapped is not None:
                    mapped.madvise(mmap.MADV_DONTNEED)


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

    def __init__(self, folder: Path, source_vocabulary: int, target_vocabulary: int) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.dtypes = {
            side: "uint16" if size <= 1 << 16 else "uint32"
            for side, size in zip(SIDES, (source_vocabulary, target_vocabulary), strict=True)
        }
        self.tokens = {side: (folder / f"{side}.tokens").open("wb") for side in SIDES}
        self.offsets = {side: (folder / f"{side}.offsets").open("wb") for side in SIDES}
        self.ends = dict.fromkeys(SIDES, 0)
        for file in self.offsets.values():
            file.write(np.zeros(1, np.int64).tobytes())

    def add(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> None:
        """Append as many rows to both sides."""
        for side, rows in zip(SIDES, (sources, targets), strict=True):
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
