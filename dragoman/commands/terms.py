"""`dragoman terms`: extract terminology from sentence pairs."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from dragoman.commands.inputs import pair_files
from dragoman.commands.printing import as_utf8, print_message
from dragoman.commands.progress import progress
from dragoman.data.examples import Pairs
from dragoman.training.display import Display

MODELS = ("ibm1", "ibm2", "ibm3", "hmm")


@click.command()
@pair_files(required=True)
@click.option("--model", type=click.Choice(MODELS), default="hmm", help="The word alignment model.")
@click.option("--max-words", type=click.IntRange(1, 7), default=3, help="Words of a term.")
@click.option("--min-count", type=click.IntRange(1), default=3, help="Occurrences of the pair.")
@click.option(
    "--min-share", type=click.FloatRange(0.0, 1.0), default=0.5,
    help="Share of the source term's occurrences that have this translation.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One object per line: source, target, times, share.")
def terms(files: str | Pairs, model: str, as_json: bool, **limits: Any) -> None:
    """Extract terms and their translations from sentence pairs, most frequent first.

    terms aligns the words of all pairs, and prints the words and phrases that are mostly translated in one way: source,
    target, count and share, tab-separated. Its first two columns are a file for predict --terminology.

    \b
    dragoman terms pairs.tsv > terms.tsv
    dragoman terms --source a.en --target a.de --max-words 2 --min-count 10
    dragoman terms pairs.tsv | cut -f 1,2 > list.tsv
    dragoman predict runs/my input.txt --terminology list.tsv
    """
    from dragoman.analysis.align_files import read_raw_pairs
    from dragoman.analysis.word_alignment import RawAligner, extract_terms

    pairs = read_raw_pairs(files)
    with Display(quiet=not sys.stderr.isatty()) as display:
        aligner = RawAligner(model, 5, pairs, display.preparing)
    with progress("pairs", aligner.count) as done:
        extracted = extract_terms(aligner(pairs, weights=False), done=done, **limits)
    as_utf8()
    for term in extracted:
        row = (term.source, term.target, str(term.times), f"{term.share:.3f}")
        click.echo(json.dumps(term._asdict(), ensure_ascii=False) if as_json else "\t".join(row))
    if not extracted:
        print_message("found no term; lower --min-count or --min-share")
