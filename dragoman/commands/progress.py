"""A progress bar on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from dragoman.data.readers.base import READERS, compression_of
from dragoman.terminal import in_notebook, unguarded
from dragoman.training.display import duration

BLOCK = 1 << 20


@contextmanager
def progress_bar(unit: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of items just done; without a total the bar shows a count alone."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    state = TextColumn("{task.fields[state]}")
    columns = (state,) if total is None else (BarColumn(), TaskProgressColumn(), state, TimeRemainingColumn())
    whole = "" if total is None else f" of {total:,}"
    started, count = time.monotonic(), 0
    # Standard output is data: rich must not redirect it.
    console = Console(file=unguarded(sys.stderr))
    bar = Progress(*columns, console=console, redirect_stdout=False, redirect_stderr=False)
    with bar:
        task = bar.add_task("", total=total, state=f"0{whole} {unit}")

        def done(more: int) -> None:
            nonlocal count
            count += more
            rate = count / max(time.monotonic() - started, 1e-9)
            bar.update(task, advance=more, state=f"{count:,}{whole} {unit}, {rate:,.0f} a second")

        yield done


@contextmanager
def progress(unit: str, total: int | None = None, output: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar if a person watches; with `output` not where the outputs appear on the same terminal."""
    if is_watched(output):
        with progress_bar(unit, total) as done:
            yield done
    else:
        yield lambda count: None


def is_watched(output: bool = False) -> bool:
    return sys.stderr.isatty() and not in_notebook() and not (output and sys.stdout.isatty())


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


def count_lines(path: str | Path | None) -> int | None:
    """The number of lines of a plain file; None for a stream, and for compressed files, which would be read twice."""
    if path is None or not Path(path).is_file() or not READERS.of(path).lines or compression_of(path):
        return None
    count, last = 0, b"\n"
    with Path(path).open("rb") as file:
        while block := file.read(BLOCK):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")
