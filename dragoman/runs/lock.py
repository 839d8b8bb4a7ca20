"""A lock on a run folder: only one training may write to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.errors import RunError

try:
    import fcntl
except ImportError:  # Windows: no lock
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock inside the block; RunError if another training holds it.

    The kernel releases the lock when the process ends, however it ends. The file `lock` itself stays.
    """
    if fcntl is None:
        yield
        return
    path = folder / "lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)  # never write through a symbolic link
    except OSError as error:
        raise RunError(f"{path}: cannot lock the run folder ({error.strerror})") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{folder}: another process is training this run; wait for it, or name another folder with --run"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)
