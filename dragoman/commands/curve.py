"""`dragoman curve`: how much more data would help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.auto import CurveOptions
from dragoman.commands.from_record import options_of
from dragoman.commands.inputs import what_to_train
from dragoman.commands.options import Duration, device_option, json_option, quiet_option
from dragoman.commands.printing import print_json

if TYPE_CHECKING:
    from dragoman.auto import Request


@click.command()
@what_to_train
@click.option(
    "--run", "run_folder", help="The folder of the trainings, new or to go on with. [default: runs/NAME-curve]"
)
@options_of(CurveOptions)
@click.option(
    "--time", "seconds", type=Duration(), metavar="T", help="Time for all trainings together, such as 20m or 1h30m."
)
@quiet_option("warnings and the result")
@json_option
@device_option
def curve(
    request: Request,
    run_folder: str | None,
    options: CurveOptions,
    seconds: float | None,
    quiet: bool,
    as_json: bool,
    device: str,
) -> None:
    """Predict what more training data would bring.

    It trains on 1/8, 1/4, 1/2 and all of the data.

    \b
    dragoman curve pairs.tsv                       the usual choice of a model for each size
    dragoman curve pairs.tsv --more 10000 --more 50000
    dragoman curve pairs.tsv --time 1h --plot curve.svg
    dragoman curve my.toml                         the model of a configuration for all sizes

    The parts are nested. All sizes are judged by the same pairs, which no training sees. A power law with a floor is
    fitted to the scores; the interval counts the choice of held-out pairs, the noise of training and the curves that
    the four sizes allow. The same command goes on where it stopped; a finished size is not trained again.
    """
    from dragoman.auto import curve_lines, learning_curve
    from dragoman.training import Display

    data = request.files if request.files is not None else str(request.what)
    folder = Path(run_folder or f"{request.folder}-curve")
    options = replace(options, overrides=request.overrides, seconds=seconds, device=device)
    with Display(quiet=quiet) as display:
        result = learning_curve(data, folder, options, display)
    if as_json:
        print_json(result.as_dict())
        return
    for line in curve_lines(result):
        click.echo(line)
