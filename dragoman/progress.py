"""Progress of long work in any module, for the command that shows it, and an end of it before its time.

A module calls `track` where it counts items and `check_interrupted` in loops that may take long; without a listener and
outside `interruptible` they cost next to nothing. Both concern work in the caller's own thread alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]  # (what, done, total): at the start with 0 done, then after each part
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Report all tracked work inside the block to a listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def track(what: str, total: int) -> Callable[[int], None]:
    """Begin a piece of work; call the result with the number of items just done."""
    listener, done = _listener.get(), 0
    if listener is None:
        return lambda more: None
    listener(what, 0, total)

    def advance(more: int) -> None:
        nonlocal done
        done += more
        listener(what, done, total)

    return advance


class Interrupted(Exception):  # noqa: N818  (a state, not a mistake; no RuntimeError, which fast paths catch)
    """The caller needs no result any more."""


ShouldStop = Callable[[], bool]
_should_stop: ContextVar[ShouldStop | None] = ContextVar("should_stop", default=None)


@contextmanager
def interruptible(should_stop: ShouldStop) -> Iterator[None]:
    """Let searches inside the block end between two steps, with `Interrupted`, once `should_stop` is true."""
    token = _should_stop.set(should_stop)
    try:
        yield
    finally:
        _should_stop.reset(token)


def stop_check() -> ShouldStop | None:
    """What tells whether to stop, for work that goes on in another thread; None: nothing does."""
    return _should_stop.get()


def check_interrupted() -> None:
    """Raise `Interrupted` if the caller needs no result any more; for every step of a long loop."""
    if (should_stop := _should_stop.get()) is not None and should_stop():
        raise Interrupted
