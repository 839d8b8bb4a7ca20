"""Search for a model: try the configurations of the portfolio that fit the data, and train the best one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.auto.baseline import copying_line
from dragoman.auto.configure import configure_candidates
from dragoman.auto.options import SearchOptions
from dragoman.auto.request import Request, request_of
from dragoman.auto.search.run import Search
from dragoman.auto.search.state import (
    SearchState,
    check_folder,
    describe,
    has_search,
    leaderboard_head,
    leaderboard_rows,
    load_search,
)
from dragoman.auto.search.trial_config import is_length_given
from dragoman.base import DataError
from dragoman.training import Display, shown_to_caller


def is_search(asked: SearchOptions, folder: str | None) -> bool:
    """Whether train is to search: it was asked to, or the folder holds a search that is not finished."""
    if asked.asked:
        return True
    return folder is not None and has_search(Path(folder)) and not load_search(Path(folder)).done


def search(
    data: str | Path | Iterable[object],
    run: str | Path | None = None,
    *overrides: str,
    options: SearchOptions | None = None,
    quiet: bool = False,
) -> SearchState:
    """Try several configurations and train the best, in `options.seconds` or with `options.trials` of them.

    The folder `run` becomes the run of the best model. The same call goes on with a search that was stopped.
    """
    if run is None and not isinstance(data, str | Path):
        raise TypeError("search needs run=FOLDER when the data are not a file")
    with shown_to_caller(quiet) as display:
        request = request_of(data, overrides)
        return search_request(request._replace(folder=str(run or request.folder)), options or SearchOptions(), display)


def search_request(request: Request, options: SearchOptions, display: Display) -> SearchState:
    """Start a search, or go on with the one in the folder, and report; the folder becomes the run of the best model."""
    folder = Path(request.folder)
    with leaderboard(display) as show:
        check_folder(folder)
        made = Search(folder, display.info, show, options.started)
        if not has_search(folder):
            create(made, request, options, display)
        elif load_search(folder).done:
            display.info(f"search: the one in {folder} is finished; for a new one, name another folder with --run")
        else:
            display.info(f"search: going on with the one in {folder}; its settings and time are those it began with")
        state = made.run()
    if line := copying_line(folder):
        display.warning(line)
    display.info(describe(state))
    display.info(f"leaderboard: {folder}/leaderboard.md\nrun folder: {folder}\nuse it: dragoman predict {folder} FILE")
    return state


def create(made: Search, request: Request, options: SearchOptions, display: Display) -> None:
    """Choose the configurations of a new search and plan it."""
    if request.files is None:
        raise DataError(f"--time, --trials and --ensemble need a data file; found {str(request.what)!r}")
    configs, reasons = configure_candidates(request.files, request.overrides, display.preparing)
    display.close()
    display.later(reasons)
    made.create(configs, options, request.overrides)
    if options.seconds is not None and is_length_given(request.overrides):
        display.info("search: train.steps or train.epochs is set, so --time limits only how many are tried")
    display.info(plan_line(load_search(made.folder), options))


def plan_line(state: SearchState, asked: SearchOptions) -> str:
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
