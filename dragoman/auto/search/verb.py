"""Search for a model: try the configurations of the portfolio that fit the data, and train the best one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.auto.configure import configure_candidates
from dragoman.auto.options import SearchOptions
from dragoman.auto.search.run import Search, Show
from dragoman.auto.search.state import SearchState, check_folder, has_search, load_search
from dragoman.auto.search.trial_config import is_length_given
from dragoman.base import DataError
from dragoman.data import Files
from dragoman.training import Display


def search(
    files: Files | None,
    folder: Path,
    options: SearchOptions,
    overrides: Sequence[str],
    display: Display,
    show: Show = lambda state: None,
    name: str = "",
) -> SearchState:
    """Start a search in a folder, or go on with the one there; the folder becomes the run of the best model.

    `show` gets the state after every change; `name` is what the user named in place of `files`.
    """
    check_folder(folder)
    made = Search(folder, display.info, show, options.started)
    if has_search(folder):
        display.info(
            f"search: the one in {folder} is finished; for a new one, name another folder with --run"
            if load_search(folder).done
            else f"search: going on with the one in {folder}; its settings and time are those it began with"
        )
        return made.run()
    if files is None:
        raise DataError(f"--time, --trials and --ensemble need a data file; found {name!r}")
    configs, reasons = configure_candidates(files, overrides, display.preparing)
    display.close()
    display.later(reasons)
    made.create(configs, options, overrides)
    if options.seconds is not None and is_length_given(overrides):
        display.info("search: train.steps or train.epochs is set, so --time limits only how many are tried")
    display.info(plan_line(load_search(folder), options))
    return made.run()


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
