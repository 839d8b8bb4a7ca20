"""Ctrl-C, SIGTERM and SIGHUP (a lost terminal): the training loop finishes its step, saves a checkpoint and exits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


def stop_signals() -> list[int]:
    """The signals that end a run besides Ctrl-C; under nohup, which ignores SIGHUP, the run goes on."""
    hangups: list[int] = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []  # Windows has none
    return [signal.SIGTERM, *(number for number in hangups if signal.getsignal(number) is not signal.SIG_IGN)]


class Stopped(Exception):  # noqa: N818  (no error: the user asked the run to stop)
    """A signal stopped the run after a checkpoint was saved; `code` is the exit code."""

    def __init__(self, code: int, step: int) -> None:
        super().__init__(code, step)
        self.code, self.step = code, step

    def __str__(self) -> str:
        return f"stopped and saved at step {self.step}; the same command resumes from there"


class SearchStopped(Stopped):
    """A signal stopped a search; the trials that were training have saved a checkpoint."""

    def __str__(self) -> str:
        return "stopped; the trials that were training are saved, and the same command goes on with the search"


@contextmanager
def exit_cleanly_on_signals(step: Callable[[], int]) -> Iterator[None]:
    """Outside the training loop, SIGTERM and SIGHUP raise Stopped at once, so that clean-ups run as after Ctrl-C."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(128 + number, step())

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.signal(number, stop) for number in stop_signals()}
    try:
        yield
    except BaseException as error:
        if getattr(error, "abrupt", False):
            # When a process is lost, torchrun ends the others: not before this one has printed its error.
            before[signal.SIGTERM] = signal.SIG_IGN
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stop_search_on_signals() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP raise SearchStopped, also where the shell had SIGINT ignored."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SearchStopped(128 + number, 0)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, *stop_signals())
    before: dict[int, Any] = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Signals:
    """Stores a signal as an exit code: 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP.

    A second Ctrl-C raises KeyboardInterrupt at once.
    """

    def __init__(self) -> None:
        self.code = 0
        self._before: dict[int, Any] = {}

    def _store(self, number: int, frame: FrameType | None) -> None:
        if self.code and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.code = 128 + number

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *stop_signals()):
                self._before[number] = signal.signal(number, self._store)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
