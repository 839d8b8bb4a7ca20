"""How far long work is, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from dragoman.training import duration


class LongWork:
    """Prints how long tracked work will take once that is known, and again whenever the time has doubled.

    Work of a few seconds prints nothing. The lines go to standard error, to a terminal or a file alike.
    """

    FIRST, WORTH = 2.0, 10.0  # seconds until the first estimate, and to go for it to be worth a line

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.started = self.due = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = self.clock()
        if not done:
            self.started, self.due = now, now + self.FIRST
        elapsed = now - self.started
        if now < self.due or not done or done >= total:
            return
        left = elapsed * (total - done) / done
        self.due = now + max(elapsed, self.FIRST)
        if left >= self.WORTH:
            click.echo(f"{what}: {done / total:.0%} done, about {duration(left)} left", err=True)
