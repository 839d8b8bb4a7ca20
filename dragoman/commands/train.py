"""`dragoman train`, `check` and `distil`: train from files, a configuration, a run folder or the outputs of a run."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from dragoman.auto import CheckOptions, DistilOptions, SearchOptions
from dragoman.commands.from_record import options_of
from dragoman.commands.inputs import what_to_train
from dragoman.commands.options import Duration, device_option, quiet_option

if TYPE_CHECKING:
    from dragoman.auto import Request


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
    options = replace(asked, seconds=seconds, started=time.time())  # the imports below take seconds, which count
    from dragoman.auto import train_request

    train_request(request, options, folder=run_folder, restart=restart, quiet=quiet)


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
    from dragoman.auto import check_request
    from dragoman.training import Display

    with Display(quiet=not sys.stderr.isatty()) as display:  # a progress line, if a person waits

        def say(line: str) -> None:
            display.close()  # end the progress line first
            click.echo(line)

        warnings = check_request(request, options, display, say)
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

    folder = student or f"{run.rstrip('/')}-student"
    for line in distil_run(run, folder, *overrides, options=options, device=device, quiet=quiet):
        click.echo(line)
    click.echo(f"run folder: {folder}")
