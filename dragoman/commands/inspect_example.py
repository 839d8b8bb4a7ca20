"""`dragoman inspect`: see inside a run for one text."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dragoman.commands.options import beam_option, device_option, tag_option
from dragoman.errors import DataError


@click.command()
@click.argument("run")
@click.argument("text")
@click.option("--target", help="Explain this output instead of the run's own prediction.")
@click.option(
    "--output", "-o", default="inspect.html", show_default=True, metavar="FILE",
    help="A page (.html), all numbers (.json), or one figure (.svg, .png, .pdf).",
)  # fmt: skip
@click.option(
    "--view", "kind", metavar="NAME", help="The figure of .svg, .png or .pdf. [default: the first that the run has]"
)
@click.option("--layer", metavar="NAME", help="Layer of --view attention, states or positions. [default: the last]")
@beam_option
@tag_option
@device_option
def inspect(
    run: str,
    text: str,
    target: str | None,
    output: str,
    kind: str | None,
    layer: str | None,
    beam: int | None,
    tag: str | None,
    device: str,
) -> None:
    """See inside a run: what it does with TEXT, step by step, as one page that needs no network.

    \b
    attention   every layer and head over words, with input x gradient beside it
    next        probabilities of the next token, with temperature, top-k and top-p
    beam        beam search as a tree; what would have followed a pruned branch
    states      gates, hidden and cell states of recurrent layers over time
    gradients   how far gradients reach back in time
    whatif      the output without a head, a gate or a word
    labels, surprise, media, tables, positions, layers

    A run has the views that its model has parts for. TEXT is the path of a file for a run that captions or transcribes.

    \b
    dragoman inspect runs/my "ein kleiner Hund" --output page.html
    dragoman inspect runs/my "ein kleiner Hund" --target "a big dog" --output page.html
    dragoman inspect runs/my "ein kleiner Hund" --view attention --output attention.svg
    dragoman inspect runs/my "ein kleiner Hund" --output numbers.json
    """
    from dragoman.files import atomic_write, check_writable
    from dragoman.inference.load import load_run
    from dragoman.reports.inspection import inspect as look

    suffix = Path(output).suffix.lower()
    pictures = (".svg", ".png", ".pdf")
    if suffix not in (".html", ".json", *pictures):
        raise DataError(f"--output: found {output!r}, expected a file that ends in .html, .json, .svg, .png or .pdf")
    if suffix not in pictures and (kind is not None or layer is not None):
        raise DataError(f"{'--view' if kind is not None else '--layer'} goes with .svg, .png or .pdf: found {output}")
    if suffix in pictures:
        from dragoman.reports.plots import check_plot_path

        check_plot_path(output)
    else:
        check_writable(output)
    inspection = look(load_run(run, device), text, target, tag=tag, beam=beam)
    for note in inspection.notes:
        click.echo(f"note: {note}", err=True)
    if suffix in pictures:
        from dragoman.reports.inspection_plots import draw_view

        click.echo(draw_view(inspection, output, kind, layer))
        return
    with atomic_write(output) as beside:
        if suffix == ".json":
            content = json.dumps(inspection.as_dict())
        else:
            from dragoman.web.page import build_page

            content = build_page(f"{inspection.title}: inspect", "inspect-page", inspection.page_data())
        beside.write_text(content, encoding="utf-8", newline="\n")
    click.echo(output)
