"""`dragoman distil`: turn an ensemble, or any run, into one model."""

from __future__ import annotations

from pathlib import Path

import click

from dragoman.commands.labels import require_search
from dragoman.commands.options import device_option


@click.command()
@click.argument("run")
@click.argument("overrides", nargs=-1, metavar="[PLACE=VALUE]...")
@click.option("--run", "student", help="The run folder of the student. [default: RUN-student]")
@click.option("--quiet", "-q", is_flag=True, help="Show warnings only.")
@device_option
def distil(run: str, overrides: tuple[str, ...], student: str | None, quiet: bool, device: str) -> None:
    """Train one model on the outputs of a run or an ensemble, and show what it loses.

    The teacher translates all training sources; the student learns from its outputs and the references (sequence-level
    knowledge distillation, Kim and Rush 2016). It has the settings of the teacher's first model unless you change them.
    The same command resumes a student that was stopped.

    \b
    dragoman train pairs.tsv --time 1h --ensemble 5 --run runs/five
    dragoman distil runs/five --run runs/one
    dragoman distil runs/big --run runs/fast model.decoder.layers=1
    """
    from dragoman.auto.distil import distil as distil_run
    from dragoman.runs import Run
    from dragoman.training.display import Display

    require_search("distil", run, '"translate"')
    folder = Path(student or f"{run.rstrip('/')}-student")
    with Display(quiet=quiet) as display:
        result = distil_run(run, folder, overrides, device, display)
    for line in result.lines(Run(folder).config.train.metric):
        click.echo(line)
    click.echo(f"run folder: {folder}")
