"""`dragoman bench`: measure the speed of a run, or the cost of layers as sequences grow."""

from __future__ import annotations

import json
import platform
from typing import Any

import click

from dragoman.commands.checks import require_search
from dragoman.commands.inputs import pair_files
from dragoman.commands.options import device_option, json_option
from dragoman.commands.printing import as_utf8, print_message
from dragoman.data.examples import Pairs
from dragoman.errors import DataError


@click.command()
@click.argument("run", required=False)
@pair_files(reason="name FILE, or both --source and --target, or neither for the pairs that training set aside")
@click.option("--pairs", type=click.IntRange(1), help="Pairs to measure a RUN with. [default: 256]")
@click.option("--rounds", type=click.IntRange(1), help="Timings of a RUN; bench prints the median. [default: 5]")
@click.option("--lengths", is_flag=True, help="Without a RUN: time and memory of layers against the length.")
@click.option("--max-length", type=click.IntRange(64), help="With --lengths: maximum number of tokens. [default: 4096]")
@click.option("--plot", help="With --lengths: also draw it to this .png, .svg or .pdf file.")
@json_option
@device_option
def bench(run: str | None, files: str | Pairs | None, lengths: bool, as_json: bool, device: str, **given: Any) -> None:
    """Measure speed on this machine: training, decoding, layers.

    \b
    dragoman bench runs/my                       with the pairs that training set aside
    dragoman bench runs/my test.tsv --json
    dragoman bench --lengths --plot cost.png     time and memory of layers over six doublings

    bench trains a copy, so the run does not change. It leaves out what this machine lacks (a GPU, CTranslate2).
    """
    if lengths == (run is not None):
        raise DataError("name a RUN or add --lengths: found " + ("both" if lengths else "neither"))
    of_run = {"a file of pairs": files, "--pairs": given["pairs"], "--rounds": given["rounds"]}
    of_lengths = {"--plot": given["plot"], "--max-length": given["max_length"]}
    if unused := next((name for name, value in (of_run if lengths else of_lengths).items() if value is not None), None):
        raise DataError(f"{unused} goes with {'a RUN, not with --lengths' if lengths else '--lengths'}")
    if run is None:
        against_length(given["max_length"] or 4096, given["plot"], as_json, device)
    else:
        measure_run(run, files, given["pairs"] or 256, given["rounds"] or 5, as_json, device)


def measure_run(run: str, files: str | Pairs | None, pairs: int, rounds: int, as_json: bool, device: str) -> None:
    from dragoman.analysis import speed as benching

    require_search("bench", run, text=True)
    rows, texts = benching.benchmark_data(run, device, files, pairs)
    as_utf8()
    speeds = []
    if not as_json:
        click.echo(f"{machine()}; {len(rows):,} pairs, medians of {rounds} rounds")
        click.echo(f"{'':<34}{'tokens/s':>12}{'sentences/s':>14}{'seconds a round':>22}")
    for speed in benching.benchmark_speed(run, rows, texts, device, rounds):
        speeds.append(speed._asdict())
        if not as_json:
            spread = f"{speed.fastest:.3f} to {speed.slowest:.3f}"
            click.echo(f"{speed.name:<34}{speed.tokens:>12,.0f}{speed.sentences:>14,.1f}{spread:>22}")
    if as_json:
        click.echo(json.dumps({"machine": machine(), "pairs": len(rows), "rounds": rounds, "speeds": speeds}))


def machine() -> str:
    import torch

    graphics = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{platform.machine()}, {torch.get_num_threads()} threads{graphics}, torch {torch.__version__}"


def print_growth(fits: list[Any], sizes: list[Any]) -> None:
    """The fitted exponents beside those of theory, and what theory says of waiting and of paths."""
    from dragoman.analysis.cost import THEORY

    click.echo(f"\n{'power of n':<18}{'time':>7}{'theory':>8}{'memory':>8}{'theory':>8}", nl=False)
    click.echo(f"  {'operations':<12}{'sequential':<12}longest path")
    for fit in fits:
        own = THEORY[fit.layer]
        click.echo(
            f"{fit.layer:<18}{fit.seconds:>7.2f}{own.time:>8.0f}{fit.saved:>8.2f}{own.memory:>8.0f}"
            f"  {own.operations:<12}{own.sequential:<12}{own.path}"
        )
    click.echo(f"\n{'power of another size':<26}{'time':>7}{'theory':>8}")
    for fit in sizes:
        click.echo(f"{fit.layer + ', ' + fit.size:<26}{fit.seconds:>7.2f}{fit.expected:>8.0f}")
    click.echo("n tokens, d width, k kernel, r window; forward and backward with all projections")


def against_length(max_length: int, plot: str | None, as_json: bool, device: str) -> None:
    """Print time and memory of layers at every doubling up to the maximum length, and the fitted exponents."""
    from dragoman.analysis import cost
    from dragoman.analysis.figures import check_plot_path
    from dragoman.reports.plots import draw_costs
    from dragoman.training.runtime import resolve_device

    if plot is not None:
        check_plot_path(plot)
    lengths = [max_length >> shift for shift in range(6, -1, -1) if max_length >> shift >= 16]
    as_utf8()

    def print_cost(row: cost.LayerCost) -> None:
        if not as_json:
            click.echo(f"{row.layer:<18}{row.length:>8,}{1000 * row.seconds:>12.2f}{row.saved / 2**20:>12.2f}")

    if not as_json:
        click.echo(f"{machine()}; width 64, one row, forward and backward")
        click.echo(f"{'layer':<18}{'tokens':>8}{'ms':>12}{'MiB kept':>12}")
    costs = cost.measure_layers(lengths, print_cost, device=str(resolve_device(device)))
    fits = cost.growth_exponents(costs)
    sizes = cost.size_growth(str(resolve_device(device)))
    if as_json:
        table: dict[str, Any] = {"machine": machine(), "costs": [row._asdict() for row in costs]}
        table |= {"exponents": [row._asdict() for row in fits], "sizes": [row._asdict() for row in sizes]}
        table["theory"] = {name: row._asdict() for name, row in cost.THEORY.items()}
        click.echo(json.dumps(table))
    else:
        print_growth(fits, sizes)
    if plot is not None:
        print_message(f"picture: {draw_costs(costs, fits, plot)}")
