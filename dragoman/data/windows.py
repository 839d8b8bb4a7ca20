"""The first epoch in windows of shards, so that training starts on the first ones while the rest is tokenised.

With data.shuffle = "shards" the shards of a large corpus have a fixed random order. The first epoch reads them window
by window and shuffles within each. Which examples a window has follows from the files alone, so the batches are the
same whether a shard was ready long ago or comes late.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.data.batching import BatchPlan, EpochPlan
from dragoman.data.corpus_cache import lock_folder
from dragoman.data.crew import ProcessCrew, part_folder, shard_done
from dragoman.data.store import Column, TokenStore
from dragoman.errors import DataError

LARGEST = 8  # shards of a window
WAIT = 0.05  # seconds between two looks for a shard
LATE = 120.0  # seconds until a network file system must show what another machine has written


def window_shards(shards: int) -> list[range]:
    """The shards of each window. The first is one shard, for an early start; later ones mix up to eight."""
    windows, first, size = [], 0, 1
    while first < shards:
        windows.append(range(first, min(first + size, shards)))
        first, size = windows[-1].stop, min(2 * size, LARGEST)
    return windows


class JoinedColumn:
    """Some rows of one or several columns, one after the other."""

    def __init__(self, pieces: Sequence[tuple[Column, int, int]]) -> None:
        """Of each column the rows first … last−1."""
        self._pieces = pieces
        self._starts = np.cumsum([0, *(last - first for _, first, last in pieces)])

    def lengths(self) -> NDArray[np.int32]:
        return np.concatenate([column.lengths(first, last) for column, first, last in self._pieces])

    def rows(self, indices: NDArray[np.int64] | Sequence[int]) -> list[NDArray[Any]]:
        places = np.searchsorted(self._starts, indices, "right") - 1
        return [
            self._pieces[place][0].rows([self._pieces[place][1] + index - int(self._starts[place])])[0]
            for place, index in zip(places.tolist(), np.asarray(indices).tolist(), strict=True)
        ]


class Window:
    """The rows of some shards, read like a `TokenStore`."""

    def __init__(self, pieces: Sequence[tuple[TokenStore, int, int]]) -> None:
        def joined(name: str) -> JoinedColumn:
            return JoinedColumn([(getattr(store, name), first, last) for store, first, last in pieces])

        self.source, self.target = joined("source"), joined("target")
        self.copies = joined("copies") if pieces[0][0].copies is not None else None
        weights = [store.weights[first:last] for store, first, last in pieces if store.weights is not None]
        self.weights = np.concatenate(weights) if weights else None
        self._rows = sum(last - first for _, first, last in pieces)

    def __len__(self) -> int:
        return self._rows


class Windows(Protocol):
    """The windows of a corpus."""

    def __len__(self) -> int: ...

    @property
    def growing(self) -> GrowingWindows | None:
        """These windows, if the corpus was not prepared when it was opened."""

    def ready(self, number: int) -> bool:
        """Whether a window can be opened at once; raises what went wrong where it will never be."""

    def open(self, number: int) -> Window:
        """The rows of a window; waits until they are written."""

    def prepared(self) -> bool:
        """Whether all rows are written; raises what went wrong where they will never be."""

    def whole(self) -> TokenStore:
        """All rows; waits until they are written."""


class StoredWindows:
    """The windows of a corpus that is prepared."""

    growing = None

    def __init__(self, store: TokenStore, shards: Sequence[int]) -> None:
        """`shards`: the rows of each."""
        ends = np.cumsum([0, *shards]).tolist()
        self._store = store
        self._rows = [(ends[window.start], ends[window.stop]) for window in window_shards(len(shards))]

    def __len__(self) -> int:
        return len(self._rows)

    def ready(self, number: int) -> bool:
        return True

    def open(self, number: int) -> Window:
        return Window([(self._store, *self._rows[number])])

    def prepared(self) -> bool:
        return True

    def whole(self) -> TokenStore:
        return self._store


class Preparation(threading.Thread):
    """Writes the rest of a corpus while training reads its first shards."""

    def __init__(self, stages: Generator[ProcessCrew, None, Path], crew: ProcessCrew) -> None:
        super().__init__(daemon=True, name="tokenising")
        self._stages, self._crew = stages, crew
        self._read, self._cancelled = threading.Event(), False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in self._stages:
                self._read.wait()  # the files are moved next
                if self._cancelled:
                    return
        except BaseException as error:  # raised again where a shard is waited for
            self.error = error
        finally:
            self._stages.close()

    def may_move(self) -> None:
        self._read.set()

    def cancel(self) -> None:
        """End the work, which must have been started; the next process goes on with it."""
        self._cancelled = True
        self._crew.kill()
        self.may_move()
        self.join()


class GrowingWindows:
    """The windows of a corpus that is being prepared, in this process or in the main process of the job."""

    def __init__(
        self, building: Path, final: Path, shards: int, opened: Callable[[Path], Any], preparation: Preparation | None
    ) -> None:
        """`building` is moved to `final` when all is done, which `opened` then reads as a corpus with windows."""
        self.building, self.preparation = building, preparation
        self._final, self._opened = final, opened
        self._windows = window_shards(shards)
        self._corpus: Any = None  # once it is prepared
        self._lost: float | None = None  # since when the process that prepares it was not seen

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def growing(self) -> GrowingWindows:
        return self

    @property
    def failure(self) -> BaseException | None:
        """Why the preparation in this process has removed the files of the corpus."""
        return None if self.preparation is None or self.building.exists() else self.preparation.error

    def may_move(self) -> None:
        """Say that no process opens a file of the unfinished corpus by its path any more, except for shards."""
        if self.preparation is not None:
            self.preparation.may_move()

    def close(self) -> None:
        """End the preparation in this process."""
        if self.preparation is not None:
            self.preparation.cancel()

    def _finished(self) -> bool:
        return self._final.exists() and not (self.preparation is not None and self.preparation.is_alive())

    def ready(self, number: int) -> bool:
        return all(shard_done(self.building, shard) for shard in self._windows[number]) or self.prepared()

    def prepared(self) -> bool:
        if self._finished():
            return True
        self._check_prepares()
        return False

    def _check_prepares(self) -> None:
        """Raise what went wrong if nobody prepares the corpus any more."""
        if self.preparation is None:
            self._check_main_process()
        elif not self.preparation.is_alive() and not self._finished():
            raise self.preparation.error or DataError("the preparation of the data was cancelled")

    def _check_main_process(self) -> None:
        """Raise DataError if no process has locked the folder for long: a main process that fails tells why itself."""
        try:
            with lock_folder(self.building) as is_free:
                lost = is_free
        except FileNotFoundError:  # moved, or removed because of what is wrong with the data
            lost = True
        now = time.monotonic()
        self._lost = (self._lost or now) if lost else None
        if self._lost is not None and now > self._lost + LATE:
            raise DataError(
                f"{self.building}: the process that tokenises the data was lost; run the same command again: it goes "
                "on where this one stopped"
            )

    def open(self, number: int) -> Window:
        end = None
        while True:
            if self._finished():
                window: Window = self.corpus().windows.open(number)
                return window
            if self.ready(number):
                try:
                    return self._open_parts(self._windows[number])
                except FileNotFoundError:  # all shards have just been joined, or the file system is behind
                    self._check_prepares()
                    end = end or time.monotonic() + LATE
                    if time.monotonic() > end:
                        raise
            time.sleep(WAIT)

    def _open_parts(self, shards: range) -> Window:
        folders = [part_folder(self.building, shard) for shard in shards]
        stores = [TokenStore(folder) for folder in folders]
        for folder in folders:  # it is renamed before its files are removed: so none was missing
            folder.stat()
        return Window([(store, 0, len(store)) for store in stores])

    def corpus(self) -> Any:
        """The corpus that is prepared by now; waits for it."""
        self.may_move()
        if self.preparation is not None:
            self.preparation.join()
        while not self.prepared():
            time.sleep(WAIT)
        if self._corpus is None:
            self._corpus = self._opened(self._final)
        return self._corpus

    def whole(self) -> TokenStore:
        store: TokenStore = self.corpus().train
        return store


class UnfinishedStore:
    """All rows of a corpus that is being prepared; the first look at them waits until it is done."""

    def __init__(self, windows: GrowingWindows) -> None:
        self._windows = windows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._windows.whole(), name)

    def __len__(self) -> int:
        return len(self._windows.whole())


Batch = tuple[Any, BatchPlan, NDArray[np.int64]]  # the store, its plan, and the rows of a batch


class WindowedEpoch:
    """The batches of an epoch, window after window. A window is opened when its first batch is asked for."""

    def __init__(self, windows: int, plan: Callable[[int], tuple[Any, BatchPlan, EpochPlan]]) -> None:
        self._count, self._plan = windows, plan
        self._ends = [0]  # how many batches there are up to the end of each window that was opened
        self._current: tuple[int, tuple[Any, BatchPlan, EpochPlan]] | None = None

    def _open(self, number: int) -> tuple[Any, BatchPlan, EpochPlan]:
        if self._current is None or self._current[0] != number:
            self._current = None  # free it first
            self._current = number, self._plan(number)
            if number == len(self._ends) - 1:
                self._ends.append(self._ends[-1] + len(self._current[1][2]))
        return self._current[1]

    def ends_at(self, batches: int) -> bool:
        """Whether the epoch has so many batches; looks no further than to the window of the next one."""
        while self._ends[-1] <= batches and len(self._ends) <= self._count:
            self._open(len(self._ends) - 1)
        return self._ends[-1] <= batches

    def __getitem__(self, index: int) -> Batch:
        if self.ends_at(index):
            raise IndexError(index)
        number = int(np.searchsorted(self._ends, index, "right")) - 1
        store, plan, batches = self._open(number)
        return store, plan, batches[index - self._ends[number]]

    def __len__(self) -> int:
        while len(self._ends) <= self._count:
            self._open(len(self._ends) - 1)
        return self._ends[-1]

    def __iter__(self) -> Iterator[Batch]:
        index = 0
        while not self.ends_at(index):
            yield self[index]
            index += 1


def windowed_epoch(
    windows: Windows,
    epoch: int,
    plan: Callable[[Any], BatchPlan],
    wait: Callable[[Callable[[], bool]], None] = lambda ready: None,
) -> WindowedEpoch:
    """The first epoch window by window; later ones are shuffled as a whole. `wait` returns when its argument holds."""

    def planned(number: int) -> tuple[Any, BatchPlan, EpochPlan]:
        if epoch:
            wait(windows.prepared)
            store: Any = windows.whole()
            batches = plan(store)
            return store, batches, batches.epoch(epoch)
        wait(lambda: windows.ready(number))
        store = windows.open(number)
        batches = plan(store)
        return store, batches, batches.epoch(0, number)

    return WindowedEpoch(1 if epoch else len(windows), planned)
