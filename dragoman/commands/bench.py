"""`dragoman bench`: how fast a run is on this machine, and what layers cost as sequences grow."""

from __future__ import annotations

import json
import platform
from typing import Any

import click

from dragoman.commands.labels import searched_only
from dragoman.commands.media import texts_only
from dragoman.commands.options import device_option, json_option
from dragoman.commands.printing import as_utf8
from dragoman.errors import DataError


@click.command()
@click.argument("run", required=False)
@click.argument("file", required=False)
@click.option("--source", help="Source lines of a pair of parallel files.")
@click.option("--target", help="Target lines, one for each source line.")
@click.option("--pairs", type=click.IntRange(1), help="Pairs to measure a RUN with. [default: 256]")
@click.option("--rounds", type=click.IntRange(1), help="Timings of a RUN, of which the median counts. [default: 5]")
@click.option("--lengths", is_flag=True, help="Without a RUN: what layers cost as their sequence grows.")
@click.option("--max-length", type=click.IntRange(64), help="For --lengths: most tokens. [default: 4096]")
@click.option("--plot", help="For --lengths: also draw it to this .png, .svg or .pdf file.")
@json_option
@device_option
def bench(
    run: str | None,
    file: str | None,
    source: str | None,
    target: str | None,
    pairs: int | None,
    rounds: int | None,
    lengths: bool,
    max_length: int | None,
    plot: str | None,
    as_json: bool,
    device: str,
) -> None:
    """Measure speed on this machine: a run's training and decoding, or layers against length.

    \b
    dragoman bench runs/my                       with the pairs that training set aside
    dragoman bench runs/my test.tsv --json
    dragoman bench --lengths --plot cost.png     time and memory of layers over six doublings

    Training is measured on a copy: the run stays as it is. Ways that this machine lacks (a GPU, CTranslate2) are left
    out.
    """
    if lengths == (run is not None):
        raise DataError("name a RUN, or ask for --lengths: found " + ("both" if lengths else "neither"))
    if lengths:
        given = {"FILE": file, "--source": source, "--target": target, "--pairs": pairs, "--rounds": rounds}
        if idle := [name for name, value in given.items() if value is not None]:
            raise DataError(f"{idle[0]} goes with a RUN, not with --lengths")
        against_length(max_length or 4096, plot, as_json, device)
        return
    for name, value in (("--plot", plot), ("--max-length", max_length)):
        if value is not None:
            raise DataError(f"{name} goes with --lengths")
    pairs, rounds = pairs or 256, rounds or 5
    if (file is not None and source is not None) or (source is None) != (target is None):
        raise DataError("name FILE, or both --source and --target, or neither for the pairs that training set aside")
    from dragoman.analysis import speed as benching
    from dragoman.data.examples import Pairs

    assert run is not None
    searched_only("bench", run, '"translate"')
    texts_only("bench", run)
    files = Pairs(source, target) if source is not None and target is not None else file
    rows, texts = benching.benchmark_data(run, device, files, pairs)
    as_utf8()
    found = []
    if not as_json:
        click.echo(f"{machine()}; {len(rows):,} pairs, medians of {rounds} rounds")
        click.echo(f"{'':<34}{'tokens/s':>12}{'sentences/s':>14}{'seconds a round':>22}")
    for one in benching.benchmark_speed(run, rows, texts, device, rounds):
        found.append(one._asdict())
        if not as_json:
            spread = f"{one.fastest:.3f} to {one.slowest:.3f}"
            click.echo(f"{one.name:<34}{one.tokens:>12,.0f}{one.sentences:>14,.1f}{spread:>22}")
    if as_json:
        click.echo(json.dumps({"machine": machine(), "pairs": len(rows), "rounds": rounds, "speeds": found}))


def machine() -> str:
    """The machine in words."""
    import torch

    graphics = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{platform.machine()}, {torch.get_num_threads()} threads{graphics}, torch {torch.__version__}"


def against_length(max_length: int, plot: str | None, as_json: bool, device: str) -> None:
    """Measure layers at every doubling up to the maximum length, and fit."""
    from dragoman.analysis import cost
    from dragoman.runs import resolve_device

    if plot is not None:
        from dragoman.reports.plots import check_plot_path

        check_plot_path(plot)
    lengths = [max_length >> shift for shift in range(6, -1, -1) if max_length >> shift >= 16]
    as_utf8()

    def told(one: cost.LayerCost) -> None:
        if not as_json:
            click.echo(f"{one.layer:<18}{one.length:>8,}{1000 * one.seconds:>12.2f}{one.saved / 2**20:>12.2f}")

    if not as_json:
        click.echo(f"{machine()}; width 64, one row, forward and backward")
        click.echo(f"{'layer':<18}{'tokens':>8}{'ms':>12}{'MiB kept':>12}")
    costs = cost.measure_layers(lengths, device=str(resolve_device(device)), done=told)
    fits = cost.growth_exponents(costs)
    if as_json:
        table: dict[str, Any] = {"machine": machine(), "costs": [one._asdict() for one in costs]}
        click.echo(json.dumps(table | {"exponents": [one._asdict() for one in fits]}))
    else:
        click.echo(f"\n{'grows with the power':<22}{'time':>8}{'memory':>10}{'in theory':>12}")
        for fit in fits:
            click.echo(f"{fit.layer:<22}{fit.seconds:>8.2f}{fit.saved:>10.2f}{fit.expected:>12.0f}")
    if plot is not None:
        from dragoman.reports.plots import draw_costs

        click.echo(f"picture: {draw_costs(costs, fits, plot)}", err=True)
