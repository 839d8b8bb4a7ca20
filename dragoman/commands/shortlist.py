"""`dragoman shortlist`: what a run's sources are likely to need of a large vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dragoman.commands.labels import searched_only
from dragoman.commands.options import json_option


@click.command()
@click.argument("run")
@click.option("--likely", type=click.IntRange(1), default=50, show_default=True, help="Translations a source token.")
@click.option(
    "--frequent", type=click.IntRange(0), default=500, show_default=True, help="Target tokens that are always listed."
)
@click.option(
    "--pairs", type=click.IntRange(1), default=100_000, show_default=True, help="Most training pairs to learn from."
)
@click.option("--output", metavar="FILE", help="Where it goes. [default: shortlist.safetensors in the run folder]")
@json_option
def shortlist(run: str, likely: int, frequent: int, pairs: int, output: str | None, as_json: bool) -> None:
    """Learn which target tokens each source token may need, so that a large vocabulary decodes faster.

    Aligns the tokens of the run's training pairs (IBM model 1). A source may then be answered with the likely
    translations of its tokens, its own tokens and the most frequent target tokens; everything else is not computed.

    \b
    dragoman shortlist runs/my
    dragoman predict runs/my input.txt --shortlist auto
    dragoman shortlist runs/my --likely 50 --frequent 1000 --output wide.safetensors
    """
    from dragoman.analysis.shortlist import build_shortlist
    from dragoman.decoding.shortlist import NAME, shortlist_model
    from dragoman.files import check_writable
    from dragoman.inference.load import load_predictor

    path = Path(run) / NAME if output is None else Path(output)
    searched_only("shortlist", run, '"translate"')
    predictor = load_predictor(run, "cpu", engine="torch")
    shortlist_model(predictor.model)
    check_writable(path)
    found, coverage = build_shortlist(predictor.run, likely, frequent, pairs)
    found.save(path, predictor.source_tokenizer, predictor.target_tokenizer)
    if as_json:
        click.echo(json.dumps({"file": str(path), "coverage": coverage.share, "listed": coverage.length}))
        return
    size = len(predictor.target_tokenizer)
    click.echo(f"listed for a source: {coverage.length:,.0f} of {size:,} target tokens, on average")
    click.echo(f"validation tokens that are listed: {coverage.share:.2%}")
    click.echo(f"written: {path}")
