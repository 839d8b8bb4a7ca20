"""`dragoman corrections`: look at what clients of a server would have written, and accept or reject it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from dragoman.commands.options import json_option
from dragoman.commands.printing import as_utf8
from dragoman.errors import DataError

if TYPE_CHECKING:
    from dragoman.data.correction_log import Correction, State

ACTIONS = {"accept": "accepted", "reject": "rejected"}


@click.command()
@click.argument("action", type=click.Choice(["list", *ACTIONS]))
@click.argument("folder")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="All corrections that wait for a decision.")
@click.option(
    "--state", type=click.Choice(["pending", "accepted", "rejected", "all"]), default="pending",
    help="Which corrections `list` shows.",
)  # fmt: skip
@json_option
def corrections(action: str, folder: str, ids: tuple[str, ...], every: bool, state: str, as_json: bool) -> None:
    """Review corrections that clients of a server have sent.

    \b
    dragoman serve runs/my --corrections corrections     the server keeps them in the folder corrections
    dragoman corrections list corrections                those that wait for a decision, with their ids
    dragoman corrections accept corrections 3f2a 90c1    the beginning of an id is enough
    dragoman corrections reject corrections --all        all others that wait
    dragoman adapt runs/my --from-server corrections     learn from those that were accepted

    A later decision replaces an earlier one. Nothing is ever removed from the file.
    """
    from dragoman.data.correction_log import CorrectionLog

    as_utf8()
    log = CorrectionLog(folder)
    if action == "list":
        if ids or every:
            raise DataError("list takes no ids: found some, expected FOLDER alone; choose by --state")
        show(log.read(None if state == "all" else state), as_json)  # type: ignore[arg-type]
        return
    if bool(ids) == every:
        raise DataError(f"found {'ids and --all' if ids else 'no id'}, expected ids or --all: what to {action}")
    decided: State = ACTIONS[action]  # type: ignore[assignment]
    chosen = [item.id for item in log.read("pending")] if every else list(ids)
    changed = log.decide(chosen, decided)
    if as_json:
        show(changed, as_json)
    else:
        click.echo(f"{decided}: {len(changed):,}")


def show(items: list[Correction], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([item.as_dict() for item in items], ensure_ascii=False))
        return
    for item in items:
        languages = f"{item.source_language} → {item.target_language}" if item.target_language else ""
        version = f"version {item.version}" if item.version is not None else ""
        about = [item.id, item.state, item.time, item.model, version, languages, item.tag and f"tag {item.tag}"]
        click.echo("  ".join(filter(None, about)))
        for label, text in (("source", item.source), ("output", item.output), ("better", item.correction)):
            if text is not None:
                click.echo(f"  {label}  {' '.join(text.split())}")
    click.echo(f"{len(items):,} corrections")
