"""`dragoman adapt`: a better version of a run from corrected outputs."""

from __future__ import annotations

import json
from dataclasses import replace

import click

from dragoman.auto import AdaptOptions
from dragoman.base import DataError
from dragoman.commands.from_record import options_of
from dragoman.commands.options import device_option, json_option, quiet_option, tag_option
from dragoman.commands.printing import print_json


@click.command()
@click.argument("run")
@click.argument("corrections", required=False)
@click.argument("overrides", nargs=-1, metavar="[PLACE=VALUE]...")
@options_of(AdaptOptions)
@click.option(
    "--from-server", metavar="FOLDER",
    help="Take the accepted corrections of `dragoman serve --corrections FOLDER` instead of a file.",
)  # fmt: skip
@click.option(
    "--rollback", is_flag=False, flag_value=-1, type=int, metavar="[N]",
    help="Use version N again, without N the one before that in use.",
)  # fmt: skip
@quiet_option("warnings and the result")
@tag_option
@json_option
@device_option
def adapt(
    run: str,
    corrections: str | None,
    overrides: tuple[str, ...],
    from_server: str | None,
    rollback: int | None,
    as_json: bool,
    options: AdaptOptions,
    quiet: bool,
    tag: str | None,
    device: str,
) -> None:
    """Make a better version of a run from corrected outputs.

    \b
    dragoman adapt runs/my corrections.tsv            source and correction, or source, output and correction
    dragoman adapt runs/my reviewed.xlf               also .po, .tmx, .csv, .jsonl
    dragoman adapt runs/my more.tsv --general news.tsv    mix in other text than the run was trained on
    dragoman adapt runs/my --from-server corrections  after `dragoman corrections accept`
    dragoman adapt runs/my --rollback                 use the version before again
    dragoman info runs/my                             list the versions

    adapt filters the corrections (rules of `dragoman clean`, and of contradictory ones the last counts), sets a fifth
    of them aside, mixes the others with general pairs and trains. The new version is kept only if it is better on the
    corrections set aside and not worse on general text: its score is not significantly lower (paired bootstrap,
    p < 0.05) and hides no loss of 1 point, its loss does not rise, and it overuses no word (sign test). Otherwise the
    old one stays in use, and adapt shows outputs that would change.
    """
    if from_server is not None and corrections is not None and "=" in corrections:
        overrides, corrections = (corrections, *overrides), None  # no file was named, so the first word is a setting
    if rollback is not None:
        if corrections is not None or overrides or from_server is not None:
            raise DataError("--rollback takes no corrections: found both, expected one of them")
        show_rollback(run, None if rollback == -1 else rollback, as_json)
        return
    if corrections is not None and from_server is not None:
        raise DataError(f"found {corrections} and --from-server {from_server}, expected one of them")
    if corrections is None and from_server is None:
        raise DataError("nothing to adapt to: name a file of corrections or --from-server, or go back with --rollback")
    from dragoman.auto import adapt as adapt_run
    from dragoman.training import Display

    options = replace(options, tag=tag, overrides=overrides, device=device, from_server=from_server is not None)
    with Display(quiet=quiet) as display:
        result = adapt_run(run, from_server or corrections or "", options, display)
    if as_json:
        print_json(result.as_dict())
        return
    click.echo(f"held-out corrections ({result.held_out.segments:,}): {result.held_out}")
    click.echo(f"general text ({result.general.segments:,}): {result.general}; {result.general.bound}")
    if result.kept:
        click.echo(f"version {result.version} is in use now; go back with: dragoman adapt {run} --rollback")
    else:
        click.echo(f"the new version was not kept: {result.reason}; the old one stays in use")
        for changed in result.general.changed:
            click.echo(f"  {changed.source}  →  {changed.before}  →  {changed.after}")
        if result.held_out.better:
            click.echo(f"more general pairs keep more of it: --mix {4 * max(1.0, options.mix):g}")
            if not result.general.significant:
                click.echo("more pairs to judge by rule out smaller losses: --general FILE, of which a tenth judges")


def show_rollback(folder: str, number: int | None, as_json: bool) -> None:
    from dragoman.runs import roll_back

    version = roll_back(folder, number)
    if as_json:
        click.echo(json.dumps({"version": version.number}))
    else:
        click.echo(f"version {version.number} is in use now ({version.origin}, {version.made})")
