"""`dragoman compare`: test texts for significance, compare runs, or train configurations and compare them."""

from __future__ import annotations

import click

from dragoman.auto import CompareOptions, compare_systems
from dragoman.commands.from_record import options_of
from dragoman.commands.options import json_option
from dragoman.commands.printing import as_utf8, print_json, print_message


@click.command()
@click.argument("systems", nargs=-1, metavar="[REFERENCES] SYSTEM...")
@options_of(CompareOptions)
@json_option
def compare(systems: tuple[str, ...], options: CompareOptions, as_json: bool) -> None:
    """Compare texts, runs or configurations by one protocol.

    Texts: the outputs of each SYSTEM against those of the first, on the same REFERENCES. Every score has a 95 %
    interval; every difference has p-values by paired bootstrap and by approximate randomisation. A line of REFERENCES
    may hold several references, tab-separated.

    Runs (folders) and configurations (.toml): all are tested on the pairs of --test. Configurations are trained first
    on the data of the first one, with its tokenizer, batches and budget. The same command resumes after a stop.

    \b
    dragoman compare ref.txt greedy.txt beam5.txt
    dragoman compare ref.txt base.txt one.txt two.txt --metric bleu --plot scores.png --output report.html
    dragoman compare runs/lstm runs/transformer --test test.tsv --output report.html
    dragoman compare small.toml large.toml --test test.tsv --steps 2000 --seeds 3 --output report.html
    dragoman compare --ladder pairs.tsv --minutes 10 --output ladder.html
    dragoman compare words.toml characters.toml --own-tokenizers --test test.tsv --minutes 10 --output report.html
    dragoman compare --untrained --output gradients.html
    dragoman compare small.toml large.toml --tasks glue --seeds 3
    dragoman compare ladder.json --output ladder.html         draw a kept report again, without training
    """
    as_utf8()
    found = compare_systems(systems, options, print_message)
    if as_json and found.data is not None:
        print_json(found.data)
    elif not as_json and found.lines:
        click.echo("\n".join(found.lines))
