"""`dragoman shortlist`: learn which target tokens are likely for each source token."""

from __future__ import annotations

import json

import click

from dragoman.commands.from_record import options_of
from dragoman.commands.options import json_option
from dragoman.inspect import ShortlistOptions


@click.command()
@click.argument("run")
@options_of(ShortlistOptions)
@json_option
def shortlist(run: str, options: ShortlistOptions, as_json: bool) -> None:
    """Learn which target tokens to try, for faster decoding.

    They are the likely translations of each source token. A large vocabulary gains most.

    shortlist aligns the tokens of the run's training pairs (IBM model 1). With method=shortlist, predict then computes
    only the likely translations of the source tokens, the source tokens themselves and the most frequent target tokens.

    \b
    dragoman shortlist runs/my
    dragoman predict runs/my input.txt method=shortlist
    dragoman shortlist runs/my --likely 50 --frequent 1000 --output wide.safetensors
    """
    from dragoman.inspect.measure import shortlist as learn

    learned = learn(run, options)
    click.echo(json.dumps(learned.as_dict()) if as_json else "\n".join(learned.lines()))
