"""Progress and messages of a training run: a progress bar on a terminal, HTML in a notebook, plain lines elsewhere.

All messages go to the logger `dragoman.training`, whatever is shown, and to the file `train.log` of a run.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, TextIO

from dragoman.base import WarningLine, append_text, in_notebook, silent, unguarded, visible
from dragoman.data.readers import as_given, in_callers_words
from dragoman.training.notebook_panel import notebook_panel

LOG = logging.getLogger("dragoman.training")
logging.getLogger("dragoman").addHandler(logging.NullHandler())  # silent, unless a program asks for our messages
SHORTEST_BAR = 8  # columns of a terminal
MOST_KEPT = 10_000  # lines before a run folder exists


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class LastingStream:
    """A text stream that discards what it can no longer write: a lost terminal must not end a run."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Display:
    """Writes progress to standard error; `quiet` shows warnings only.

    In a job of several processes all read the same data and say the same of them, so only the main one prints `info`.
    """

    def __init__(self, stream: TextIO | None = None, quiet: bool = False, is_main: bool = True) -> None:
        self.stream: Any = LastingStream(unguarded(stream or sys.stderr))
        self.quiet, self.is_main = quiet or not is_main, is_main
        quiet = self.quiet
        notebook = in_notebook()
        self._panel = None if quiet or stream is not None else notebook_panel()
        self.interactive = not (quiet or notebook) and self.stream.isatty()
        self.in_place = self.interactive or (not quiet and notebook)  # whether a line can be written over
        self._bar: Any = None
        self._task: Any = None
        self._activity = ""
        self._line_open = False  # whether the cursor stands at the end of a preparation's line
        self._updated = 0.0
        self._waiting: list[str] = []  # for the next line that is shown
        self._file: Path | None = None  # train.log of a run
        self._kept: list[str] = []  # lines for the train.log of a run that does not exist yet

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the progress bar or the line of a preparation; its last state stays on the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._line_open:
            print(file=self.stream, flush=True)
            self._line_open = False

    @contextmanager
    def kept_in(self, path: Path) -> Iterator[None]:
        """Write all messages to the log of a run: those since the run before, and those inside the block."""
        self._file, waiting, self._kept = path, self._kept, []
        append_text(path, "".join(waiting))
        try:
            yield
        except BaseException as error:
            self.record(f"ended by {type(error).__name__}: {error}", logging.ERROR)
            raise
        finally:
            self._file = None

    def record(self, line: str, level: int = logging.INFO) -> None:
        """Log a line that is not shown."""
        if not self.is_main:
            return
        line = visible(in_callers_words(line))
        LOG.log(level, "%s", line)
        text = f"{datetime.now().isoformat(' ', 'seconds')} {logging.getLevelName(level)} {line}\n"
        if self._file is not None:
            with suppress(OSError):  # a full disk ends a run elsewhere, where something is lost
                append_text(self._file, text)
        elif len(self._kept) < MOST_KEPT:
            self._kept.append(text)

    def info(self, *lines: str) -> None:
        """Print lines that are not empty, unless quiet."""
        self._print_waiting()
        for line in filter(None, lines):
            self.record(line)
            if not self.quiet:
                self._print(line)

    def warning(self, line: str) -> None:
        """Print a warning, even when quiet."""
        self._print_waiting()
        self.record(line, logging.WARNING)
        self._print(f"warning: {line}")

    def later(self, lines: Iterable[str]) -> None:
        """Print lines, such as choices, before whatever is shown next: never, if an error ends the command first."""
        self._waiting += lines

    def _print_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for line in waiting:
            is_warning = isinstance(line, WarningLine)
            self.record(line.removeprefix("warning: "), logging.WARNING if is_warning else logging.INFO)
            if not self.quiet or (self.is_main and is_warning):
                self._print(line)

    def _print(self, line: str) -> None:
        line = visible(in_callers_words(line))
        if self._panel is not None:
            self._panel.line(line)
        elif self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            self.close()
            print(line, file=self.stream, flush=True)

    def preparing(self, activity: str, count: int) -> None:
        """Show a preparation and how many items it has handled; at most 5 times a second (a file: every 10 s)."""
        self._print_waiting()
        now = time.monotonic()
        if self.quiet or (activity == self._activity and now - self._updated < (0.2 if self.in_place else 10)):
            return
        line = visible(f"{activity}: {count:,} so far" if count else f"{activity} …")
        if self._panel is not None:
            self._panel.progress(line)
        elif self.in_place:
            if activity != self._activity:
                self.close()
            if self.interactive:
                line = line[: get_terminal_size().columns - 1]  # a longer one could not be written over
            print(f"\r{line}", end="", file=self.stream, flush=True)
            self._line_open = True
        else:
            print(line, file=self.stream, flush=True)
        self._activity, self._updated = activity, now

    def start(self, step: int, steps: int) -> None:
        self._print_waiting()
        self.close()
        if self.interactive:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(
                BarColumn(bar_width=None),
                TextColumn("{task.fields[count]}"),
                TextColumn("{task.fields[state]}"),
                console=Console(file=self.stream),
                expand=True,
            )
            self._task = self._bar.add_task("", total=steps, completed=step, count=f"{step}/{steps}", state="")
            self._bar.start()

    def advance(self, step: int) -> None:
        if self._bar is not None:
            count = self._bar.tasks[0].fields["count"].partition("/")
            self._bar.update(self._task, completed=step, count="".join((str(step), *count[1:])))

    def show_step(
        self, step: int, steps: int, loss: float, rate: float, speed: float, remaining: float, by_time: bool = False
    ) -> None:
        """Show loss, learning rate, tokens per second and remaining seconds.

        `by_time`: the time ends training, and `steps` is an estimate, which is not shown as a number.
        """
        parts = [f"loss {loss:.3f}", f"rate {rate:.2e}", f"{speed:,.0f} tokens/s", f"{duration(remaining)} left"]
        count = str(step) if by_time else f"{step}/{steps}"
        text = f"step {count}  {'  '.join(parts)}"
        self.record(text)
        if self._panel is not None:
            self._panel.progress(text, step, max(step, steps))
            return
        if self._bar is not None:
            # Where the line is too narrow for all, the rate goes first, then the speed, then the loss.
            room = self._bar.console.width - len(count) - SHORTEST_BAR - 2
            for name in ("rate", "tokens", "loss"):
                if len("  ".join(parts)) > room:
                    parts = [part for part in parts if name not in part]
            self._bar.update(self._task, total=max(step, steps), completed=step, count=count, state="  ".join(parts))
            return
        if self.in_place:
            # One line that changes in place: a line for each logged step would fill the notebook.
            print(f"\r{text}".ljust(100), end="", file=self.stream, flush=True)
            self._line_open = True
        elif not self.quiet:
            self._print(text)


@contextmanager
def shown_to_caller(quiet: bool) -> Iterator[Display]:
    """The display of a verb that Python calls; errors and messages name rows in memory as the caller knows them."""
    with silent(quiet), as_given(), Display(quiet=quiet) as display:
        yield display
