"""`dragoman shortlist`: learn which target tokens are likely for each source token."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dragoman.commands.checks import require_search
from dragoman.commands.options import json_option
from dragoman.files import check_writable


@click.command()
@click.argument("run")
@click.option("--likely", type=click.IntRange(1, 10_000), default=50, help="Translations per source token.")
@click.option("--frequent", type=click.IntRange(0), default=500, help="Frequent tokens in every list.")
@click.option("--pairs", type=click.IntRange(1), default=100_000, help="Maximum number of training pairs.")
@click.option("--output", metavar="FILE", help="File to write. [default: shortlist.safetensors in the run folder]")
@json_option
def shortlist(run: str, likely: int, frequent: int, pairs: int, output: str | None, as_json: bool) -> None:
    """Learn which target tokens to try, for faster decoding.

    They are the likely translations of each source token. A large vocabulary gains most.

    shortlist aligns the tokens of the run's training pairs (IBM model 1). With method=shortlist, predict then computes
    only the likely translations of the source tokens, the source tokens themselves and the most frequent target tokens.

    \b
    dragoman shortlist runs/my
    dragoman predict runs/my input.txt method=shortlist
    dragoman shortlist runs/my --likely 50 --frequent 1000 --output wide.safetensors
    """
    from dragoman.analysis.shortlist import build_shortlist
    from dragoman.decoding.shortlist import NAME, shortlist_model
    from dragoman.inference.load import load_predictor

    path = Path(run) / NAME if output is None else Path(output)
    require_search("shortlist", run)
    predictor = load_predictor(run, "cpu", engine="torch")
    shortlist_model(predictor.single_model("a shortlist restricts the output layer of one"))
    check_writable(path)
    learned, covered, listed = build_shortlist(predictor.run, likely, frequent, pairs)
    learned.save(path, predictor.source_tokenizer, predictor.target_tokenizer)
    if as_json:
        click.echo(json.dumps({"file": str(path), "coverage": covered, "listed": listed}))
        return
    size = len(predictor.target_tokenizer)
    click.echo(f"listed for a source: {listed:,.0f} of {size:,} target tokens, on average")
    click.echo(f"validation tokens that are listed: {covered:.2%}")
    click.echo(f"written: {path}")
