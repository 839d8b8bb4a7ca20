"""The cache of prepared corpora: one folder for each, keyed by its content, complete or taken up where it was left.

A corpus is built in a folder beside its place, which is locked while its process lives, and renamed when all files are
on the disk. So several processes can share a cache, and a kill at any moment leaves no half corpus.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dragoman.base import DataError, DragomanError, cache_home, lock, make_temporary, remove_folder, sync
from dragoman.data.config import DataConfig
from dragoman.data.workers import WORK, WorkerLostError

KEPT_SECONDS = 7 * 24 * 3600.0  # how long unfinished work stays
SIZES = "sizes.json"  # the size of every other file


def find_damage(folder: Path) -> str | None:
    """A file of a prepared corpus that is missing or does not have the size that was written; None: all is well."""
    try:
        sizes: dict[str, int] = json.loads((folder / SIZES).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"{SIZES}: {error}"
    for name, size in sizes.items():
        path = folder / name
        actual = path.stat().st_size if path.is_file() else 0
        if actual != size:
            return f"{name}: found {actual:,} bytes, expected {size:,}"
    return None


def cache_folder(config: DataConfig) -> Path:
    return Path(config.cache) if config.cache else cache_home()


@contextmanager
def lock_folder(folder: Path, wait: bool = False) -> Iterator[bool]:
    """Try to lock a folder during the block; yields whether this process holds the lock."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders: nothing is locked, so that none is taken for abandoned
        yield False
        return
    try:
        yield lock(handle, wait=wait) is True  # not where the file system (some network ones) has no locks
    finally:
        os.close(handle)


@contextmanager
def build_folder(cache: Path, key: str) -> Iterator[Path]:
    """A temporary folder to build in, locked while its process lives.

    Of a large corpus it is the one that a killed process left, with all finished jobs. Other folders of killed
    processes are removed, those with finished jobs after some days.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with lock_folder(cache, wait=True):  # no process may take a folder for abandoned before its owner has locked it
        building, locked = None, ExitStack()
        for folder in cache.glob("[0-9a-f]" * len(key) + ".*"):
            with suppress(OSError), ExitStack() as held:
                if not held.enter_context(lock_folder(folder)):
                    continue
                if building is None and folder.name.startswith(key) and (folder / WORK).is_dir():
                    building, locked = folder, held.pop_all()
                elif not (folder / WORK).is_dir() or time.time() - folder.stat().st_mtime > KEPT_SECONDS:
                    shutil.rmtree(folder)
        if building is None:
            building = make_temporary(cache, f"{key}.")
            locked.enter_context(lock_folder(building))
    with locked:
        try:
            yield building
        except BaseException as error:
            # After Ctrl-C, a full disk or the like, the next process goes on; what is wrong with the data stays wrong.
            resumable = isinstance(error, WorkerLostError) or not isinstance(error, DragomanError)
            if not (resumable and (building / WORK).is_dir()):
                shutil.rmtree(building, ignore_errors=True)
            raise
        shutil.rmtree(building, ignore_errors=True)


def cached(cache: Path, key: str, build: Callable[[Path], None]) -> Path:
    """The folder of this key in the cache; `build` fills a new one if it is missing or damaged."""
    folder = cache / key
    if folder.exists() and find_damage(folder):
        with lock_folder(cache, wait=True):  # another process may have built it anew meanwhile
            if folder.exists() and (damage := find_damage(folder)):
                print(f"{folder}: the token store is damaged ({damage}); it is built anew", file=sys.stderr)
                remove_folder(folder)
                if folder.exists():
                    raise DataError(
                        f"{folder}: the token store is damaged and cannot be removed; remove it or set data.cache"
                    )
    if folder.exists():
        return folder
    try:
        with build_folder(cache, key) as building:
            build(building)
            files = [path for path in sorted(building.rglob("*")) if path.is_file()]
            sizes = {str(path.relative_to(building)): path.stat().st_size for path in files}
            (building / SIZES).write_text(json.dumps(sizes), encoding="utf-8")
            for path in (*building.rglob("*"), building):
                sync(path)
            try:
                building.rename(folder)
            except OSError:
                # Another process has prepared the same corpus meanwhile; its result is the same.
                if not folder.exists():
                    raise
    except OSError as error:
        raise DataError(f"{cache}: cannot write the token store here ({error.strerror})") from None
    return folder
