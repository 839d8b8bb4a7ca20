"""What the server asks of the operating system: a listening socket that drains well, and memory that stays flat."""

from __future__ import annotations

import ctypes
import gc
import os
import selectors
import socket
import struct
import sys
import threading
import time

from dragoman.base import ConfigError

BACKLOG = 1024
SHARES_SOCKETS = os.name == "posix"  # whether a process can inherit a listening socket from another
_SO_ATTACH_FILTER = 26
# Classic BPF over a TCP segment: drop it if the flag SYN is set in byte 13, keep all others.
_DROP_SYN = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x02), (0x15, 0, 1, 0), (0x06, 0, 0, 0xFFFFFFFF), (0x06, 0, 0, 0))
_M_ARENA_MAX = -8
ARENAS = 2  # glibc makes eight for every core, and each keeps what its threads once needed
PAUSE = 10.0  # seconds between two times that pages are given back
_lock = threading.Lock()
_last = 0.0


def listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns off Nagle's algorithm only where the protocol is named; with it, answers wait 40 ms for an ACK.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if SHARES_SOCKETS:  # on Windows it would let others take the port while it is in use
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"host, port: cannot listen on {host}:{port} ({error.strerror or error}); choose another --port"
        ) from None
    listening.set_inheritable(True)
    return listening


def address_of(listening: socket.socket) -> str:
    """The address of a listening socket, for people."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def ignore_new_connections(listening: socket.socket) -> bool:
    """Let no further connection begin; those that wait to be accepted stay. Returns whether the system can do it.

    Closing a listening socket resets the connections in its backlog, whose clients may have sent a request already.
    So a filter first drops the first segment of new connections, then the server accepts all that wait, then it closes.
    A client in between tries again after a second and is refused. The filter holds for all processes with the socket.
    """
    if not sys.platform.startswith("linux"):
        return False
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in _DROP_SYN))
    try:
        pointer = struct.pack("HL", len(_DROP_SYN), ctypes.addressof(program))
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)
    except OSError:
        return False
    return True


def has_waiting(listening: socket.socket) -> bool:
    """Whether a connection waits to be accepted."""
    if listening.fileno() < 0:
        return False
    with selectors.DefaultSelector() as selector:  # not select.select, which refuses handles above 1023
        selector.register(listening, selectors.EVENT_READ)
        return bool(selector.select(0))


# --- memory


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
