"""Train with what a user names, or check it: settings for data, a configuration, a run to resume, or a search."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dragoman.auto.baseline import copying_line
from dragoman.auto.checking import check as check_config
from dragoman.auto.estimates import Say
from dragoman.auto.machine import configure_for_machine
from dragoman.auto.options import CheckOptions, SearchOptions
from dragoman.auto.request import Request, request_of
from dragoman.auto.search.verb import is_search, search_request
from dragoman.base import ConfigError, DataError, Progress, WarningLine, names_in_environment
from dragoman.base import config as settings
from dragoman.classical import TRANSDUCERS
from dragoman.data import Files
from dragoman.exchange import EXPORTERS
from dragoman.runs import Run, resume_config
from dragoman.runs import train as train_run
from dragoman.runs.tasks import Config, load, preset_table, task_of
from dragoman.scoring import higher_is_better, metrics_by_name
from dragoman.training import Display, ProcessGroup, TrainingState, duration, shown_to_caller

CHECK = CheckOptions()
PROGRAMS = ("huggingface", "ctranslate2", "argos", "onnx", "web")  # formats of `export` that others run models in


def train_request(
    request: Request, options: SearchOptions, *, folder: str | None = None, restart: bool = False, quiet: bool = False
) -> None:
    """Train what a request means in a folder, or search, and report how it went; what is there is resumed."""
    display = Display(quiet=quiet, is_main=ProcessGroup().is_main)
    searches = is_search(options, folder or request.what)
    if searches and restart:
        raise ConfigError("--restart: a search cannot be restarted; delete its folder, or name another with --run")
    request = request._replace(folder=folder or request.folder)
    if searches:
        search_request(request, options, display)
        return
    config, reasons = resolve(request, display.preparing)
    display.later(reasons)
    progress = train_run(config, request.folder, display, restart)
    if display.is_main:
        if (line := copying_line(request.folder)) and not display.quiet:
            display.warning(line)
        report_trained(request.folder, progress, display)


class Checked(NamedTuple):
    """What a check reports."""

    lines: list[str]
    warnings: int  # lines that are warnings


def check(
    data: str | Path | Iterable[object], *overrides: str, options: CheckOptions = CHECK, quiet: bool = True
) -> Checked:
    """Check data and settings before a training: every line, lengths, memory, and a trial run on a few examples.

    `data` are files or pairs in memory, a configuration file, or the folder of a run that would be resumed. What
    training would refuse is a DragomanError.
    """
    lines: list[str] = []
    with shown_to_caller(quiet) as display:
        warnings = check_request(request_of(data, overrides), options, display, lines.append)
    return Checked(lines, warnings)


def check_request(request: Request, options: CheckOptions, display: Display, say: Say) -> int:
    """Check what a request would train; returns the number of warnings."""
    config, reasons = resolve(request, display.preparing, despite_faults=True)
    for reason in reasons:
        say(reason)
    folder = Path(request.folder) if request.what == request.folder else None  # a run that would be resumed
    return check_config(config, say, options, display.preparing, folder)


def resolve(request: Request, progress: Progress, despite_faults: bool = False) -> tuple[Config, list[str]]:
    """The configuration that a request means, and what is to be said of it.

    With `despite_faults` faulty lines of data files are no error yet.
    """
    what, files, overrides, _ = request
    if files is None:
        assert what is not None
        if Path(what).is_dir():
            return resume_config(what, overrides), []
        config = load(what, overrides)
        dropped = settings.dropped_settings(settings.read_toml(what), settings.override({}, overrides))
        return config, [
            f"left out of {what}: {', '.join(lost)}, settings of another kind of {place}" for place, lost in dropped
        ]
    choose = configure_despite_faults if despite_faults else configure_for_machine
    config, reasons = choose(files, overrides, progress)
    if overrides:
        reasons = [*reasons, f"overrides: {', '.join(overrides)}"]
    given = settings.override({}, overrides)
    if isinstance(preset := given.get("preset"), str):
        for place, lost in settings.dropped_settings(preset_table(preset), given):
            line = f"another kind of {place} drops {', '.join(lost)} of preset {preset}; its sizes are now the defaults"
            reasons.append(WarningLine(f"warning: {line} of the new kind"))
    return config, reasons


def configure_despite_faults(files: Files, overrides: tuple[str, ...], progress: Progress) -> tuple[Config, list[str]]:
    """As `configure_for_machine`, but skip faulty lines: the check reports them later."""
    data = settings.override({}, overrides).get("data")
    if isinstance(data, dict) and "faults" in data:
        return configure_for_machine(files, overrides, progress)
    try:
        config, reasons = configure_for_machine(files, (*overrides, "data.faults=skip"), progress)
    except DataError:  # too few usable lines: the strict way names the faults
        return configure_for_machine(files, overrides, progress)
    return replace(config, data=replace(config.data, faults="few")), reasons


def report_trained(folder: str, progress: TrainingState, display: Display) -> None:
    """Print the best score, the run folder and the next command."""
    config = Run(folder).config  # with the steps that train.epochs means
    use, what = ("complete", "PROMPT") if task_of(config).is_language_model else ("predict", "FILE")
    imports = "".join(f"--import {name} " for name in names_in_environment())
    where = f"run folder: {folder}\nuse it: dragoman {imports}{use} {folder} {what}"
    if limits := limits_line(folder):
        where = f"{limits}\n{where}"
    if getattr(config.model, "fitted", False):
        display.info(where)
        return
    score, step = progress.best[0] if progress.best else (float("nan"), progress.step)
    score = score if higher_is_better(config.train.metric) else -score
    shown = metrics_by_name()[config.train.metric].format(score)
    early = progress.step < config.train.steps
    done = f"done: {progress.step:,} steps{' (stopped early)' if early else ''}"
    display.info(f"{done}, best {config.train.metric} {shown} at step {step:,}")
    if early and config.train.minutes and not progress.is_out_of_patience(config.train.patience):
        display.info(f"training stopped after train.minutes = {config.train.minutes:g}; raise it to train further")
    elif early:
        patience = config.train.patience
        display.info(
            f"training stopped because {patience} validations in a row had no better {config.train.metric} "
            f"(train.patience). To train further: dragoman train {folder} train.patience={2 * patience}"
        )
    elif line := longer_line(folder, config, progress):
        display.info(line)
    display.info(where)


def longer_line(folder: str, config: Config, progress: TrainingState) -> str:
    """How much more training would likely bring, if the score still rose at the end; else empty."""
    metric, steps = config.train.metric, config.train.steps
    sign = 1 if higher_is_better(metric) else -1
    scores = [(row["step"], row["valid"][metric]) for row in Run(folder).metrics() if metric in row.get("valid", {})]
    first = [sign * score for step, score in scores if step <= steps / 2]
    second = [sign * score for step, score in scores if steps / 2 < step <= steps]
    if not first or not second or max(second) <= max(first) or progress.best[0][1] < 0.8 * steps:
        return ""
    before, after = (metrics_by_name()[metric].format(sign * max(part)) for part in (first, second))
    return (
        f"the second half of training improved {metric} from {before} to {after}; as many steps again, about "
        f"{duration(progress.seconds)} more, would likely improve it further, by less: dragoman train {folder} "
        f"train.steps={2 * steps}"
    )


def limits_line(folder: str | Path) -> str:
    """What the model of a run cannot do: exports, and what a model without gradients lacks; empty if all is there."""
    run = Run(folder)
    if run.task.name != "translate":
        return ""
    if getattr(run.config.model, "fitted", False):
        model = TRANSDUCERS.of(run.config.model).model
        lacks = {"none": ["probabilities"], "sequence": ["probabilities of single tokens"]}.get(model.likelihood, [])
        lacks += ["exports"] if model.shows_alignment else ["attention", "exports"]
        return f"limits: {run.config.model.kind} has no {', no '.join(lacks[:-1])} and no {lacks[-1]}"
    blocked = []
    for name in PROGRAMS:
        if reasons := EXPORTERS[name].blockers(run):
            others = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
            blocked.append(f"{name} ({reasons[0].partition(':')[0]}{others})")
    return f"limits: it cannot be exported to {', '.join(blocked)}" if blocked else ""
