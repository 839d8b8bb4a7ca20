"""`dragoman corrections`: look at what clients of a server would have written, and accept or reject it."""

from __future__ import annotations

from typing import Any

import click

from dragoman.commands.from_record import options_of
from dragoman.commands.options import json_option
from dragoman.commands.printing import as_utf8, print_json
from dragoman.data import DECISIONS, ReviewOptions, review


@click.command()
@click.argument("action", type=click.Choice(["list", *DECISIONS]))
@click.argument("folder")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@options_of(ReviewOptions)
@json_option
def corrections(action: Any, folder: str, ids: tuple[str, ...], options: ReviewOptions, as_json: bool) -> None:
    """Review corrections that clients of a server have sent.

    \b
    dragoman serve runs/my --corrections corrections     the server keeps them in the folder corrections
    dragoman corrections list corrections                those that wait for a decision, with their ids
    dragoman corrections accept corrections 3f2a 90c1    the beginning of an id is enough
    dragoman corrections reject corrections --all        all others that wait
    dragoman adapt runs/my --from-server corrections     learn from those that were accepted

    A later decision replaces an earlier one. Nothing is ever removed from the file.
    """
    items = review(folder, action, ids, options)
    as_utf8()
    if as_json:
        print_json([item.as_dict() for item in items])
    elif action == "list":
        for item in items:
            click.echo("\n".join(item.lines()))
        click.echo(f"{len(items):,} corrections")
    else:
        click.echo(f"{DECISIONS[action]}: {len(items):,}")
