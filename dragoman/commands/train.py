"""`dragoman train`, `check` and `distil`: train from files, a configuration, a run folder or the outputs of a run."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.auto import CheckOptions, DistilOptions, SearchOptions
from dragoman.base import DataError, WarningLine, cache_home, run_name
from dragoman.base import config as settings
from dragoman.commands.checks import require_search
from dragoman.commands.from_record import options_of
from dragoman.commands.options import device_option, quiet_option
from dragoman.commands.search import Duration, Request, is_search, train_by_search
from dragoman.data import Pairs, is_remote, local_copy
from dragoman.training import Display, duration

PROGRAMS = ("huggingface", "ctranslate2", "argos", "onnx", "web")  # formats of `export` that others run models in

if TYPE_CHECKING:
    from dragoman.base import Progress
    from dragoman.runs.tasks import Config


def read_request(what: str | None, source: str | None, target: str | None, overrides: tuple[str, ...]) -> Request:
    """Check the arguments that name data or a configuration; remote files are downloaded."""
    what, source, target = (
        str(local_copy(name, cache_home())) if name is not None and is_remote(name) else name
        for name in (what, source, target)
    )
    if what is not None and "=" in what and not Path(what).exists():
        overrides, what = (what, *overrides), None
    if (source is None) != (target is None):
        raise DataError("--source and --target go together: found one, expected both")
    if what is not None and source is not None:
        raise DataError(f"found both '{what}' and --source/--target, expected one of them")
    if source is not None and target is not None:
        return Request(None, Pairs(source, target), overrides, str(Path("runs") / run_name(source)))
    if what is None:
        raise DataError("nothing to train on: name a data file, a configuration (.toml) or a run folder")
    if Path(what).is_dir():
        return Request(what, None, overrides, what)
    return Request(
        what, None if what.lower().endswith(".toml") else what, overrides, str(Path("runs") / run_name(what))
    )


def resolve(request: Request, progress: Progress, despite_faults: bool = False) -> tuple[Config, list[str]]:
    """The configuration that a request means, and what is to be said of it.

    With `despite_faults` faulty lines of data files are no error yet.
    """
    from dragoman.auto import configure_for_machine
    from dragoman.runs.tasks import config as configuration

    what, files, overrides, _ = request
    if files is None:
        assert what is not None
        if Path(what).is_dir():
            from dragoman.runs import resume_config

            return resume_config(what, overrides), []
        config = configuration.load(what, overrides)
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
        for place, lost in settings.dropped_settings(configuration.preset_table(preset), given):
            line = f"another kind of {place} drops {', '.join(lost)} of preset {preset}; its sizes are now the defaults"
            reasons.append(WarningLine(f"warning: {line} of the new kind"))
    return config, reasons


def configure_despite_faults(
    files: str | Pairs, overrides: tuple[str, ...], progress: Progress
) -> tuple[Config, list[str]]:
    """As `configure_for_machine`, but skip faulty lines: the check reports them later."""
    from dragoman.auto import configure_for_machine

    data = settings.override({}, overrides).get("data")
    if isinstance(data, dict) and "faults" in data:
        return configure_for_machine(files, overrides, progress)
    try:
        config, reasons = configure_for_machine(files, (*overrides, "data.faults=skip"), progress)
    except DataError:  # too few usable lines: the strict way names the faults
        return configure_for_machine(files, overrides, progress)
    return replace(config, data=replace(config.data, faults="few")), reasons


def what_to_train(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the arguments that name data or a configuration to a command, which gets them as `request`."""

    @functools.wraps(function)
    def gathered(what: Any, source: Any, target: Any, overrides: Any, **given: Any) -> None:
        if given.get("installation"):
            if what or source or target or overrides:
                raise click.UsageError("--installation looks at no data: leave out files, runs and settings")
            function(request=None, **given)
            return
        function(request=read_request(what, source, target, overrides), **given)

    gathered = click.argument("overrides", nargs=-1, metavar="[PLACE=VALUE]...")(gathered)
    gathered = click.argument("what", required=False, metavar="[FILE|CONFIG|RUN]")(gathered)
    gathered = click.option("--target", help="Target lines, one for each source line.")(gathered)
    return click.option("--source", help="Source lines of a pair of parallel files.")(gathered)


@click.command()
@what_to_train
@click.option("--run", "--run-folder", "run_folder", help="The run folder to create or resume. [default: runs/NAME]")
@click.option(
    "--restart", is_flag=True, help="Discard the weights of an existing run and train it from the first step."
)
@click.option(
    "--time", "seconds", type=Duration(), metavar="TIME",
    help="Search: try several configurations in this time (90s, 20m, 1h30m) and train the best to the end.",
)  # fmt: skip
@options_of(SearchOptions, "asked")
@quiet_option("warnings")
def train(
    request: Request, run_folder: str | None, restart: bool, quiet: bool, seconds: float | None, asked: SearchOptions
) -> None:
    """Train a model, or resume a run.

    \b
    dragoman train pairs.tsv                      choose all settings from the data, and say why
    dragoman train --source a.en --target a.de    the same from two parallel files
    dragoman train pairs.tsv train.minutes=5      the same, but stop after five minutes
    dragoman train pairs.tsv --time 20m           try several configurations, train the best
    dragoman train pairs.tsv --time 1h --ensemble 5    keep the best five as one ensemble
    dragoman train my.toml train.steps=2000       from a configuration, one setting changed
    dragoman train runs/my                        resume a run
    dragoman train runs/my --restart              discard its weights and train it again
    dragoman train text.txt task=language-model   a language model, from plain text
    torchrun --nproc-per-node 2 -m dragoman train my.toml --run-folder runs/my    on several processes

    Data may be .tsv, .csv, .jsonl, .parquet or .tmx, also as .gz or .zst. On Ctrl-C, SIGTERM and SIGHUP train saves and
    stops; the same command resumes, and the result is the same to the bit. With torchrun write --run-folder in place
    of --run, which torchrun would take for its own --run-path.
    """
    started = time.time()  # the imports below take seconds, which count for --time
    from dragoman.auto import copying_line
    from dragoman.runs import train as train_run
    from dragoman.training import ProcessGroup

    if run_folder:
        request = request._replace(folder=run_folder)
    display = Display(quiet=quiet, is_main=ProcessGroup().is_main)
    search = replace(asked, seconds=seconds, started=started)
    if is_search(search, run_folder or request.what):
        if restart:
            raise click.UsageError(
                "--restart: a search cannot be restarted; delete its folder, or name another with --run"
            )
        train_by_search(request, search, display)
        return
    config, reasons = resolve(request, display.preparing)
    display.later(reasons)
    progress = train_run(config, request.folder, display, restart)
    if ProcessGroup().is_main:
        if (line := copying_line(request.folder)) and not quiet:
            display.warning(line)
        report_trained(request.folder, progress, display)


def longer_line(folder: str, config: Config, progress: Any) -> str:
    """How much more training would likely bring, if the score still rose at the end; else empty."""
    from dragoman.runs import Run
    from dragoman.scoring import higher_is_better, metrics_by_name

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
    from dragoman.classical import TRANSDUCERS
    from dragoman.exchange import EXPORTERS
    from dragoman.runs import Run

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


def report_trained(folder: str, progress: Any, display: Display) -> None:
    """Print the best score, the run folder and the next command."""
    from dragoman.base import names_in_environment
    from dragoman.runs import Run
    from dragoman.runs.tasks import task_of
    from dragoman.scoring import higher_is_better, metrics_by_name

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


@click.command()
@what_to_train
@options_of(CheckOptions)
@click.option("--installation", is_flag=True, help="Check what is installed instead: packages, extras, devices.")
def check(request: Request | None, options: CheckOptions, installation: bool) -> None:
    """Check data and settings before a run, or the installation.

    check reads the configuration and every data line (it names each fault as file:line), measures lengths, padding and
    the memory of the largest batch, and runs one cycle of train, validate, save, reload and decode on a few pairs.

    \b
    dragoman check pairs.tsv
    dragoman check my.toml train.batch_tokens=8192 --show 20
    dragoman check --installation      which packages, extras and devices are there, and what others would give
    """
    if request is None:
        from dragoman.commands.installation import installation_lines

        for line in installation_lines():
            click.echo(line)
        return
    from dragoman.auto import check as prove

    with Display(quiet=not sys.stderr.isatty()) as display:  # a progress line, if a person waits

        def say(line: str) -> None:
            display.close()  # end the progress line first
            click.echo(line)

        config, reasons = resolve(request, display.preparing, despite_faults=True)
        for reason in reasons:
            say(reason)
        folder = Path(request.folder) if request.what == request.folder else None  # a run that would be resumed
        warnings = prove(config, say, options, display.preparing, folder)
    click.echo(f"the run can start, but see the warnings ({warnings})" if warnings else "all is well")


@click.command()
@click.argument("run")
@click.argument("overrides", nargs=-1, metavar="[PLACE=VALUE]...")
@click.option("--run", "student", help="The run folder of the student. [default: RUN-student]")
@options_of(DistilOptions)
@quiet_option("warnings")
@device_option
def distil(
    run: str,
    overrides: tuple[str, ...],
    student: str | None,
    options: DistilOptions,
    quiet: bool,
    device: str,
) -> None:
    """Train one model on the outputs of a run or an ensemble.

    At the end it shows what the student loses.

    The teacher translates all training sources; the student learns from its outputs and the references (sequence-level
    knowledge distillation, Kim and Rush 2016). It has the settings of the teacher's first model unless you change them.
    The same command resumes a student that was stopped. With --unlabelled it also learns from further inputs and the
    outputs of which the teacher is confident (self-training). With --token-level the student learns the mean
    probabilities of the teacher's models at every position (train.objective = "token-distillation").

    \b
    dragoman train pairs.tsv --time 1h --ensemble 5 --run runs/five
    dragoman distil runs/five --run runs/one
    dragoman distil runs/big --run runs/fast model.decoder.layers=1
    dragoman distil runs/five --run runs/more --token-level --unlabelled words.txt
    """
    from dragoman.auto import distil as distil_run
    from dragoman.data.readers import check_file

    require_search("distil", run)
    folder = Path(student or f"{run.rstrip('/')}-student")
    if options.unlabelled is not None:
        check_file(Path(options.unlabelled))
    with Display(quiet=quiet) as display:
        lines = distil_run(run, folder, overrides, device, display, options)
    for line in lines:
        click.echo(line)
    click.echo(f"run folder: {folder}")
