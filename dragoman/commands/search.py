"""`dragoman train --time`: try the configurations of a portfolio and train the best."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dragoman.data.examples import Pairs
from dragoman.errors import DataError
from dragoman.training.display import Display

if TYPE_CHECKING:
    from dragoman.auto.search.run import Search, SearchOptions
    from dragoman.auto.search.state import SearchState


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
    from dragoman.auto.search.state import has_search, load_search

    if asked.seconds is not None or asked.trials is not None or asked.ensemble > 1:
        return True
    return folder is not None and has_search(Path(folder)) and not load_search(Path(folder)).done


def train_by_search(request: Request, asked: SearchOptions, display: Display) -> None:
    """Start a search, or go on with the one in the folder."""
    from dragoman.auto.baseline import copying_line
    from dragoman.auto.configure import configure_candidates
    from dragoman.auto.search.run import Search
    from dragoman.auto.search.state import check_folder, describe, has_search, load_search
    from dragoman.auto.search.trial_config import is_length_given

    what, files, overrides, place = request
    folder = Path(place)
    check_folder(folder)
    with leaderboard(display) as show:
        search = Search(folder, display.info, show, asked.started)
        if has_search(folder):
            state = load_search(folder)
            display.info(
                f"search: the one in {folder} is finished; for a new one, name another folder with --run"
                if state.done
                else f"search: going on with the one in {folder}; its settings and time are those it began with"
            )
        else:
            if files is None:
                raise DataError(f"--time, --trials and --ensemble need a data file; found {what!r}")
            configs, reasons = configure_candidates(files, overrides, display.preparing)
            display.close()
            display.later(reasons)
            search.create(configs, asked, overrides)
            if asked.seconds is not None and is_length_given(overrides):
                display.info("search: train.steps or train.epochs is set, so --time limits only how many are tried")
            display.info(plan_line(search, asked))
        state = search.run()
    if line := copying_line(folder):
        display.warning(line)
    display.info(describe(state))
    display.info(f"leaderboard: {folder}/leaderboard.md\nrun folder: {folder}\nuse it: dragoman predict {folder} FILE")


def plan_line(search: Search, asked: SearchOptions) -> str:
    from dragoman.auto.search.state import load_search

    state = load_search(search.folder)
    names = ", ".join(trial.name for trial in state.trials)
    processes = f"{state.workers} process{'es' if state.workers > 1 else ''}"
    folds = f", {state.folds}-fold cross-validation since few pairs are set aside" if state.folds > 1 else ""
    if len(state.trials) == 1:
        reason = ", as --trials asks" if asked.trials == 1 else "; the settings or the time allow no more"
        return f"search: one configuration, {names}{reason}"
    return (
        f"search: {len(state.trials)} configurations ({names}; the first is the default model) in {processes}{folds}, "
        f"compared by {state.metric}"
    )


@contextmanager
def leaderboard(display: Display) -> Iterator[Callable[[SearchState], None]]:
    """A live table on a terminal; elsewhere a line for each change at the top."""
    from dragoman.auto.search.state import leaderboard_head, leaderboard_rows

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
