"""What a person sees while a model trains: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, TextIO


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Display:
    """Progress to standard error; `quiet` keeps everything but warnings back."""

    def __init__(self, stream: TextIO | None = None, quiet: bool = False) -> None:
        self.stream = stream or sys.stderr
        self.quiet = quiet
        self.lively = not quiet and self.stream.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._doing = ""
        self._open = False  # whether a line of a preparation waits for its end
        self._noted = 0.0

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the bar or the line of a preparation, leaving its last state on the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._open:
            print(file=self.stream, flush=True)
            self._open = False

    def info(self, line: str) -> None:
        """A line that stays."""
        if not self.quiet:
            self._print(line)

    def warning(self, line: str) -> None:
        """A line that is shown even when quiet."""
        self._print(f"warning: {line}")

    def _print(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            self.close()
            print(line, file=self.stream, flush=True)

    def preparing(self, what: str, count: int) -> None:
        """Long preparation: how many things were handled so far."""
        now = time.monotonic()
        if self.quiet or (what == self._doing and now - self._noted < (0.2 if self.lively else 10)):
            return
        line = f"{what}: {count:,} so far" if count else f"{what} …"
        if self.lively:
            if what != self._doing:
                self.close()
            print(f"\r{line}", end="", file=self.stream, flush=True)
            self._open = True
        else:
            print(line, file=self.stream, flush=True)
        self._doing, self._noted = what, now

    def start(self, step: int, steps: int) -> None:
        """Training starts or goes on."""
        self.close()
        if self.lively:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[state]}"),
                console=Console(file=self.stream),
            )
            self._task = self._bar.add_task("training", total=steps, completed=step, state="")
            self._bar.start()

    def advance(self, step: int) -> None:
        """A step is done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def show_step(self, step: int, steps: int, loss: float, rate: float, speed: float, left: float) -> None:
        """Where training stands, at every logged step."""
        text = f"loss {loss:.3f}  rate {rate:.2e}  {speed:,.0f} tokens/s  {duration(left)} left"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, state=text)
        elif not self.quiet:
            self._print(f"step {step}/{steps}  {text}")
