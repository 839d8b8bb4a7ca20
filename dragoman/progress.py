"""Progress of long work in any module, for the command that shows it.

A module calls `track`; without a listener that costs nothing. A listener hears of work in its own thread alone.
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
