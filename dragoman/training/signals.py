"""Ctrl-C and SIGTERM ask the loop to save and leave; they never tear a step apart."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class Stopped(Exception):  # noqa: N818  (not an error: the run was asked to stop, and did)
    """The run was saved and left because a signal asked for it."""

    def __init__(self, code: int, step: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.code, self.step = code, step


@contextmanager
def exit_cleanly_on_sigterm(step: Callable[[], int]) -> Iterator[None]:
    """Outside the loop there is nothing to save: SIGTERM leaves at once, but through every clean-up, as Ctrl-C does."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise Stopped(128 + number, step())

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Any = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except BaseException as error:
        if getattr(error, "abrupt", False):
            before = signal.SIG_IGN  # torchrun ends the others when one is lost: not before they have told the user
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


class Signals:
    """Remembers a signal as an exit code (130 Ctrl-C, 143 SIGTERM); a second Ctrl-C is obeyed at once."""

    def __init__(self) -> None:
        self.code = 0
        self._before: dict[int, Any] = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.code and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.code = 128 + number

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
