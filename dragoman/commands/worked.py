"""`dragoman worked`: a textbook's numbers worked out, or the reader's own."""

from __future__ import annotations

import click

from dragoman.commands.from_record import options_of
from dragoman.commands.options import json_option
from dragoman.commands.printing import as_utf8, print_json, print_message
from dragoman.lecture import WorkedOptions


@click.command()
@click.argument("name", required=False)
@click.argument("values", nargs=-1, metavar="[VALUE=…]...")
@options_of(WorkedOptions)
@json_option
def worked(name: str | None, values: tuple[str, ...], options: WorkedOptions, as_json: bool) -> None:
    """Work out a textbook's numbers, step by step, or your own.

    Without NAME it lists the calculations and the values that each takes. Items of a list stand between commas, rows
    of a table between semicolons.

    \b
    dragoman worked                                          list the calculations
    dragoman worked attention                                scores 112 and 96 become 0.88 and 0.12
    dragoman worked viterbi seen=dizzy,cold
    dragoman worked edit-distance left=flaw right=lawn --json
    dragoman worked --page toys.html                         a page to type numbers into
    """
    from dragoman.lecture import worked as work_out
    from dragoman.lecture import worked_names, worked_settings, write_toys

    as_utf8()
    if name is None:
        if options.page is not None:
            write_toys(options.page)
        if as_json:
            print_json(worked_names())
        elif options.page is None:
            for known, about in worked_names().items():
                click.echo(f"{known:<15}{about}")
                for line in worked_settings(known):
                    click.echo(f"    {line}")
    else:
        found = work_out(name, values, options)
        if as_json:
            print_json(found.as_dict())
        else:
            click.echo(str(found))
    if options.page is not None:
        print_message(f"page: {options.page}")
