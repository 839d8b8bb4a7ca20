"""The cache of prepared corpora: its folder, and temporary folders that several processes may build in at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dragoman.data.config import DataConfig
from dragoman.files import cache_home, make_temporary


def cache_folder(config: DataConfig) -> Path:
    """The folder of prepared corpora."""
    return Path(config.cache) if config.cache else cache_home()


@contextmanager
def lock_folder(folder: Path, wait: bool = False) -> Iterator[bool]:
    """Try to lock a folder during the block; yields whether this process holds the lock."""
    try:
        import fcntl
    except ImportError:  # Windows: nothing is locked, so no folder is ever taken for abandoned
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except OSError:  # another process holds the lock, or the file system (some network ones) has no locks
            locked = False
        yield locked
    finally:
        os.close(handle)


@contextmanager
def build_folder(cache: Path, key: str) -> Iterator[Path]:
    """A temporary folder to build in, locked while its process lives; removes those that killed processes left."""
    cache.mkdir(parents=True, exist_ok=True)
    with lock_folder(cache, wait=True):  # no process may take a folder for abandoned before its owner has locked it
        for folder in cache.glob("[0-9a-f]" * len(key) + ".*"):
            with suppress(OSError), lock_folder(folder) as abandoned:
                if abandoned:
                    shutil.rmtree(folder)
        building = make_temporary(cache, f"{key}.")
        lock = ExitStack()
        lock.enter_context(lock_folder(building))
    with lock:
        try:
            yield building
        finally:
            shutil.rmtree(building, ignore_errors=True)
