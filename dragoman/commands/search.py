"""`dragoman train --time`: try the configurations of a portfolio and train the best."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dragoman.data import Pairs
from dragoman.training import Display

if TYPE_CHECKING:
    from dragoman.auto import SearchOptions
    from dragoman.auto.search import SearchState


class Request(NamedTuple):
    """What `train` and `check` are told."""

    what: str | None  # a data file, a configuration or a run folder; None: two parallel files
    files: str | Pairs | None  # the data; None for a configuration or a run folder
    overrides: tuple[str, ...]
    folder: str


UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A time such as 90s, 20m or 1h30m; a plain number is seconds."""

    name = "duration"

    def convert(self, value: Any, parameter: Any, context: Any) -> float:
        if isinstance(value, int | float):
            return float(value)
        text = str(value).strip().lower()
        if not re.fullmatch(r"(\d+(\.\d+)?[dhms])+|\d+(\.\d+)?", text):
            self.fail(f"found {value!r}, expected a time such as 90s, 20m or 1h30m")
        parts = re.findall(r"(\d+(?:\.\d+)?)([dhms]?)", text)
        seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
        if seconds <= 0:
            self.fail(f"found {value!r}, expected a time above zero, such as 20m")
        return seconds


def is_search(asked: SearchOptions, folder: str | None) -> bool:
    """Whether train is to search: it was asked to, or the folder holds a search that is not finished."""
    from dragoman.auto.search import has_search, load_search

    if asked.asked:
        return True
    return folder is not None and has_search(Path(folder)) and not load_search(Path(folder)).done


def train_by_search(request: Request, asked: SearchOptions, display: Display) -> None:
    """Start a search, or go on with the one in the folder."""
    from dragoman.auto import copying_line
    from dragoman.auto.search import describe, search

    folder = Path(request.folder)
    with leaderboard(display) as show:
        state = search(request.files, folder, asked, request.overrides, display, show, str(request.what))
    if line := copying_line(folder):
        display.warning(line)
    display.info(describe(state))
    display.info(f"leaderboard: {folder}/leaderboard.md\nrun folder: {folder}\nuse it: dragoman predict {folder} FILE")


@contextmanager
def leaderboard(display: Display) -> Iterator[Callable[[SearchState], None]]:
    """A live table on a terminal; elsewhere a line for each change at the top."""
    from dragoman.auto.search import leaderboard_head, leaderboard_rows

    if display.quiet:
        yield lambda state: None
        return
    if not display.interactive:
        shown = ""

        def show_best(state: SearchState) -> None:
            nonlocal shown
            if not any(trial.scores or trial.final is not None for trial in state.trials):
                return
            cells = dict(zip(leaderboard_head(state), leaderboard_rows(state)[0], strict=True))
            line = (
                f"search: best so far {cells['configuration']}, {leaderboard_head(state)[-1]} {[*cells.values()][-1]} "
                f"after {cells['steps']} steps ({cells['trained']})"
            )
            if line != shown:
                shown = line
                display.info(line)

        yield show_best
        return
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    console = Console(file=display.stream)
    with Live(console=console, auto_refresh=False) as live:
        display.stream = console.file  # messages go above the table

        def show(state: SearchState) -> None:
            table = Table(*leaderboard_head(state))
            for row in leaderboard_rows(state):
                table.add_row(*row)
            live.update(table, refresh=True)

        yield show
