"""Ctrl-C, SIGTERM and SIGHUP (a lost terminal): the training loop finishes its step, saves a checkpoint and exits."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from dragoman.base import Interrupted


def stop_signals() -> list[int]:
    """The signals that end a run besides Ctrl-C; under nohup, which ignores SIGHUP, the run goes on."""
    hangups: list[int] = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []  # Windows has none
    return [signal.SIGTERM, *(number for number in hangups if signal.getsignal(number) is not signal.SIG_IGN)]


class SearchInterrupted(Interrupted):
    """A signal stopped a search; the trials that were training have saved a checkpoint."""

    def __str__(self) -> str:
        return f"stopped; the trials that were training are saved, and the same {self.caller} goes on with the search"


@contextmanager
def handling(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[dict[int, Any]]:
    """Handle signals inside the block; yields the handlers that are put back. Only the main thread can do this."""
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    before: dict[int, Any] = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield before
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def interrupted_by_signals() -> Iterator[Signals]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, so that clean-ups run; `code` is that of the first.

    Whatever saves its work on a signal handles it inside this block.
    """
    signals = Signals()

    def interrupt(number: int, frame: FrameType | None) -> None:
        signals.code = signals.code or 128 + number
        raise KeyboardInterrupt

    with handling(stop_signals(), interrupt):
        yield signals


@contextmanager
def exit_cleanly_on_signals(step: Callable[[], int]) -> Iterator[None]:
    """Outside the training loop, SIGTERM and SIGHUP raise Interrupted at once: clean-ups run as after Ctrl-C."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(128 + number, step())

    with handling(stop_signals(), stop) as before:
        try:
            yield
        except BaseException as error:
            if getattr(error, "abrupt", False):
                # When a process is lost, torchrun ends the others: not before this one has printed its error.
                before[signal.SIGTERM] = signal.SIG_IGN
            raise


@contextmanager
def stop_search_on_signals() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP raise SearchInterrupted, also where the shell had SIGINT ignored.

    Further ones do not interrupt the wait for the workers, which save: before Python 3.13 a thread whose `join` was
    interrupted counts as ended, and the search would never end. A second Ctrl-C ends all processes at once.
    """
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            raise SearchInterrupted(128 + number, 0)
        if number == signal.SIGINT:
            if sys.stderr.isatty():  # the table of the trials hides the cursor, and nothing else runs after this
                os.write(sys.stderr.fileno(), b"\x1b[?25h\nstopped at once; the trials have not saved\n")
            os._exit(128 + number)  # the workers end with this process

    with handling((signal.SIGINT, *stop_signals()), stop):
        yield


@contextmanager
def signals_wait() -> Iterator[None]:
    """A signal inside the block is handled at its end: what the block begins is never left half done."""
    waiting: list[int] = []
    with handling((signal.SIGINT, *stop_signals()), lambda number, frame: waiting.append(number)):
        yield
    for number in waiting[:1]:
        signal.raise_signal(number)


@contextmanager
def recorded_signals() -> Iterator[Signals]:
    """Inside the block a signal only sets `code`; a second Ctrl-C raises KeyboardInterrupt at once."""
    signals = Signals()
    with handling((signal.SIGINT, *stop_signals()), signals.record):
        yield signals


@dataclass
class Signals:
    """The last signal as an exit code: 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP; 0: none."""

    code: int = 0

    def record(self, number: int, frame: FrameType | None) -> None:
        if self.code and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.code = 128 + number

    def received(self) -> bool:
        return bool(self.code)
