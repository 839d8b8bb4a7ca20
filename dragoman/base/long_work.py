"""Progress of long work in any module, and an end of it before its time.

`progress` shows a bar on standard error, if a person watches it. A module without a place for a bar, because its work
may be part of other work that has one, tells the command that it runs in.

A module calls `track` where it counts items and `check_interrupted` in loops that may take long; without a listener and
outside `interruptible` they cost next to nothing. Both concern work in the caller's own thread alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from dragoman.base.terminal import in_notebook, unguarded

Progress = Callable[[str, int], None]  # (what is being done, how many items so far)
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


_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silent(quiet: bool = True) -> Iterator[None]:
    """Show no progress inside the block if `quiet`; warnings and results are not progress."""
    token = _silent.set(quiet)
    try:
        yield
    finally:
        _silent.reset(token)


def is_silent() -> bool:
    return _silent.get()


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


class Abandoned(Exception):  # noqa: N818  (a state, not a mistake; no RuntimeError, which fast paths catch)
    """The caller needs no result any more."""


ShouldStop = Callable[[], bool]
_should_stop: ContextVar[ShouldStop | None] = ContextVar("should_stop", default=None)


@contextmanager
def interruptible(should_stop: ShouldStop) -> Iterator[None]:
    """Let searches inside the block end between two steps, with `Abandoned`, once `should_stop` is true."""
    token = _should_stop.set(should_stop)
    try:
        yield
    finally:
        _should_stop.reset(token)


def stop_check() -> ShouldStop | None:
    """What tells whether to stop, for work that goes on in another thread; None: nothing does."""
    return _should_stop.get()


def check_interrupted() -> None:
    """Raise `Abandoned` if the caller needs no result any more; for every step of a long loop."""
    if (should_stop := _should_stop.get()) is not None and should_stop():
        raise Abandoned


def is_watched(output: bool = False) -> bool:
    """Whether a person sees standard error; with `output` not where the outputs appear on the same terminal."""
    if sys.stderr is None or is_silent():  # None: a Python program without a console
        return False
    return sys.stderr.isatty() and not in_notebook() and not (output and sys.stdout.isatty())


@contextmanager
def progress_bar(unit: str, total: int | None = None, start: int = 0) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of items just done; without a total the bar shows a count alone.

    `start` items were done before. Bytes are shown in MB.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    def number(count: float) -> str:
        return f"{count / 1e6:,.1f}" if unit == "bytes" else f"{count:,.0f}"

    state = TextColumn("{task.fields[state]}")
    columns = (state,) if total is None else (BarColumn(), TaskProgressColumn(), state, TimeRemainingColumn())
    whole = ("" if total is None else f" of {number(total)}") + (" MB" if unit == "bytes" else f" {unit}")
    started, count = time.monotonic(), start
    # Standard output is data: rich must not redirect it.
    console = Console(file=unguarded(sys.stderr))
    bar = Progress(*columns, console=console, redirect_stdout=False, redirect_stderr=False)
    with bar:
        task = bar.add_task("", total=total, completed=start, state=f"{number(start)}{whole}")

        def done(more: int) -> None:
            nonlocal count
            count += more
            rate = (count - start) / max(time.monotonic() - started, 1e-9)
            bar.update(task, advance=more, state=f"{number(count)}{whole}, {number(rate)} a second")

        yield done


@contextmanager
def progress(
    unit: str, total: int | None = None, output: bool = False, start: int = 0
) -> Iterator[Callable[[int], None]]:
    """A progress bar if a person watches; with `output` not where the outputs appear on the same terminal."""
    if is_watched(output):
        with progress_bar(unit, total, start) as done:
            yield done
    else:
        yield lambda count: None
