"""`dragoman clean`: take bad pairs out of a corpus."""

from __future__ import annotations

import sys

import click

from dragoman.commands.from_record import options_of
from dragoman.commands.inputs import pair_files
from dragoman.commands.options import json_option
from dragoman.commands.printing import print_json
from dragoman.data import Pairs
from dragoman.data.cleaning import CleanOptions
from dragoman.training import Display


@click.command()
@pair_files("Target", required=True)
@options_of(CleanOptions)
@json_option
def clean(files: str | Pairs, options: CleanOptions, as_json: bool) -> None:
    """Take pairs out of a corpus that would harm training.

    \b
    dragoman clean pairs.tsv -o clean.tsv
    dragoman clean --source a.en --target a.de -o clean.tsv --with language --languages en,de
    dragoman clean crawl.tmx -o clean.tsv --with near-duplicate --without markup

    clean reads the corpus twice: first to see what is usual in it (the script of each side, the ratio of lengths), then
    to judge each pair. It prints how many pairs each rule has rejected, with examples. Nothing is lost: rejected pairs
    are in the file of --rejects, with rule, place and reason, tab-separated. Rules that also reject good translations
    are off: see 'scarce' in the documentation.
    """
    from dragoman.data.cleaning import clean as clean_corpus

    with Display(quiet=not sys.stderr.isatty()) as display:
        report = clean_corpus(files, options, display.preparing)
    if as_json:
        print_json(report.as_dict())
        return
    click.echo(f"{'rule':<16}{'rejected':>10}{'share':>9}")
    for name, count in report.counts.items():
        click.echo(f"{name:<16}{count:>10,}{count / report.total:>9.2%}")
        for reason, pair in report.examples.get(name, ()):
            click.echo(f"    {reason}: {pair}"[:160])
    click.echo(f"{'kept':<16}{report.kept:>10,}{report.kept / report.total:>9.2%}   {options.output}")
    if report.rejected.total():
        click.echo(f"rejected pairs with reasons: {options.rejected}")
