"""What operating systems do in different ways: locks of files, flags of opening them, the cores of a process."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # all others
    msvcrt = None  # type: ignore[assignment]

NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)  # Windows has few symbolic links, and no flag for them
BINARY: int = getattr(os, "O_BINARY", 0)  # Windows would turn each \n into \r\n
# Windows locks bytes, and nobody can read locked ones: this one is behind the end of every file.
LOCKED_BYTE = 1 << 30
# What the drivers of NVIDIA, of NVIDIA's boards, of Windows for its Linux, and of AMD make.
GPU_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvmap", "/dev/nvgpu", "/dev/dxg", "/dev/kfd")
PAUSE = 0.05  # seconds between two attempts to lock


def lock(handle: int, *, wait: bool = False, shared: bool = False) -> bool | None:
    """Lock an open file until it is closed or the process ends, however it ends.

    True: this process has the lock. False: another one has it (never with `wait`). None: the file system has no locks.
    A lock on Windows is never shared.
    """
    if fcntl is not None:
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True
    if msvcrt is None:
        return None
    while not _lock_byte(handle):
        if not wait:
            return False
        time.sleep(PAUSE)
    return True


def _lock_byte(handle: int) -> bool:
    """Try to lock a byte of a file on Windows; the position in the file stays."""
    before = os.lseek(handle, 0, os.SEEK_CUR)
    os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    except OSError:
        return False
    finally:
        os.lseek(handle, before, os.SEEK_SET)
    return True


def may_have_gpu() -> bool:
    """Whether torch may find an NVIDIA or AMD GPU here; on Linux and macOS this needs no import of torch."""
    if sys.platform == "darwin":
        return False
    return sys.platform != "linux" or any(Path(path).exists() for path in GPU_DEVICES)


def usable_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
