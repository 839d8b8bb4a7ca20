"""Keep the memory of a server flat: few allocator arenas, and free pages given back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time

_M_ARENA_MAX = -8
ARENAS = 2  # glibc makes eight for every core, and each keeps what its threads once needed
PAUSE = 10.0  # seconds between two times that pages are given back
_lock = threading.Lock()
_last = 0.0


def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None  # musl has neither


def limit_arenas() -> None:
    """Let all threads of this process share a few allocator arenas; for arenas that do not exist yet."""
    if (library := _libc()) is not None:
        library.mallopt(_M_ARENA_MAX, ARENAS)


def freeze_garbage_collector() -> None:
    """Let the collector look only at objects made from now on.

    It would look through all modules and models, hundreds of thousands of objects, while every request waits.
    """
    gc.collect()
    gc.freeze()


def release_free_memory() -> None:
    """Give free pages back to the system, at most every few seconds: a large request must not stay in memory."""
    global _last
    with _lock:
        if time.monotonic() - _last < PAUSE:
            return
        _last = time.monotonic()
    if (library := _libc()) is not None:
        library.malloc_trim(0)
