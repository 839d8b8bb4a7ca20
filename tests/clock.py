"""Limits on processor time that hold on slow machines too: one test in ten thousand over its limit fails a build."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

LOOPS, SECONDS = 100_000, 0.01  # what the loop below takes where the limits of the tests were chosen


def slowness() -> float:
    """How many times the usual time this machine takes just now; at least 1."""
    total, started = 0, time.process_time()
    for number in range(LOOPS):
        total += number * number % 7
    return max(1.0, (time.process_time() - started) / SECONDS)


@contextmanager
def takes_at_most(seconds: float) -> Iterator[None]:
    """The block takes so much time of a processor of usual speed. Waiting and other processes do not count."""
    started = time.process_time()
    yield
    check_time(time.process_time() - started, seconds)


def check_time(spent: float, limit: float) -> None:
    """Only a limit that is passed is worth measuring the machine."""
    assert spent < limit or spent < limit * slowness(), f"took {spent:.2f} s of a processor, expected {limit} at most"
