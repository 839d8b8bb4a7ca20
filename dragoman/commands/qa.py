"""`dragoman qa`: check translations."""

from __future__ import annotations

import json

import click

from dragoman.commands.from_record import options_of
from dragoman.commands.options import json_option
from dragoman.commands.printing import as_utf8, print_message
from dragoman.documents import QAOptions


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@options_of(QAOptions)
@json_option
def qa(files: tuple[str, ...], options: QAOptions, as_json: bool) -> None:
    """Check translations: numbers, placeholders, tags and more.

    FILE has sources with translations, of a machine or a person: .xlf, .po, .tmx, or whatever train reads, such as
    .tsv, .csv and .jsonl. Segments without a translation are left out.

    \b
    dragoman qa job.xlf
    dragoman qa app.de.po --from en --terms terms.tsv -o report.html
    dragoman qa corpus.en-de.tsv --hard --json
    dragoman qa memory.tmx --from en --to de --without ending

    Some findings are mistakes: a lost number, placeholder, tag or address, a loop, a length that no translation has. qa
    then ends with exit code 1. The others are for a person to look at. An error of usage, or a file that cannot be
    read, has exit code 2.
    """
    from dragoman.documents import findings_table
    from dragoman.documents import qa as check_files

    checked = check_files(files, options)
    as_utf8()
    if as_json:
        click.echo(json.dumps(findings_table(checked), ensure_ascii=False))
    for file in () if as_json else checked:
        for pair in file.found:
            for finding in pair.findings:
                click.echo(f"{pair.place}: {finding}")
        print_message(f"{file.file}: {file.line or f'{file.segments:,} segments without findings'}")
    if any(file.hard for file in checked):
        raise click.exceptions.Exit(1)
