"""`dragoman bench`: measure the speed of a run, or the cost of layers as sequences grow."""

from __future__ import annotations

import json

import click

from dragoman.base import DataError
from dragoman.commands.from_record import options_of
from dragoman.commands.inputs import pair_files
from dragoman.commands.options import json_option
from dragoman.commands.printing import as_utf8, print_message
from dragoman.data import Pairs
from dragoman.inspect import BenchOptions


@click.command()
@click.argument("run", required=False)
@pair_files(reason="name FILE, or both --source and --target, or neither for the pairs that training set aside")
@options_of(BenchOptions)
@json_option
def bench(run: str | None, files: str | Pairs | None, options: BenchOptions, as_json: bool) -> None:
    """Measure speed on this machine: training, decoding, layers.

    \b
    dragoman bench runs/my                       with the pairs that training set aside
    dragoman bench runs/my test.tsv --json
    dragoman bench --lengths --plot cost.png     time and memory of layers over six doublings

    bench trains a copy, so the run does not change. It leaves out what this machine lacks (a GPU, CTranslate2).
    """
    if options.lengths == (run is not None):
        raise DataError("name a RUN or add --lengths: found " + ("both" if options.lengths else "neither"))
    from dragoman.inspect.measure import bench as bench_run

    of_run = {"a file of pairs": files, "--pairs": options.pairs, "--rounds": options.rounds}
    of_lengths = {"--plot": options.plot, "--max-length": options.max_length}
    others = of_run if options.lengths else of_lengths
    if unused := next((name for name, value in others.items() if value is not None), None):
        raise DataError(f"{unused} goes with {'a RUN, not with --lengths' if options.lengths else '--lengths'}")
    as_utf8()
    if run is None:
        against_length(options, as_json)
    else:
        measured = bench_run(run, files, options)
        for line in [json.dumps(measured.as_dict())] if as_json else measured.lines():
            click.echo(line)


def against_length(options: BenchOptions, as_json: bool) -> None:
    from dragoman.inspect.measure import bench_layers, machine

    if not as_json:
        click.echo(f"{machine()}; width 64, one row, forward and backward")
        click.echo(f"{'layer':<18}{'tokens':>8}{'ms':>12}{'MiB kept':>12}")
    growth = bench_layers(options, lambda row: None if as_json else click.echo(str(row)))
    click.echo(json.dumps({"machine": machine(), **growth.as_dict()}) if as_json else "\n".join(growth.lines()))
    if options.plot is not None:
        print_message(f"picture: {options.plot}")
