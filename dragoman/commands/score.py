"""`dragoman score` and `dragoman score-alignment`: score texts, or links of words, without a model."""

from __future__ import annotations

import json

import click

from dragoman.commands.from_record import options_of
from dragoman.commands.options import json_option
from dragoman.commands.printing import as_utf8
from dragoman.scoring import ScoreAlignmentOptions, ScoreOptions


@click.command()
@click.argument("hypotheses")
@click.argument("references", nargs=-1)
@options_of(ScoreOptions)
@json_option
def score(hypotheses: str, references: tuple[str, ...], options: ScoreOptions, as_json: bool) -> None:
    """Score texts against references, without a model.

    HYPOTHESES is scored line by line. A line of REFERENCES may hold several references, tab-separated. Only --words
    needs no REFERENCES.

    \b
    dragoman score out.txt ref.txt --intervals
    dragoman score out.txt ref.txt --source src.txt --by-length --metric bleu --plot lengths.png
    dragoman score out.txt ref.txt --metric bleu --ngrams
    dragoman score out.txt --words words.txt            words that do not exist
    dragoman score out.txt ref.txt --alignment --characters --substitution 2
    """
    from dragoman.inspect.measure import score_files, score_lines

    scores, lines = score_files(hypotheses, references, options)
    as_utf8()
    for line in [json.dumps(scores)] if as_json else [*lines, *score_lines(scores)]:
        click.echo(line)


@click.command("score-alignment")
@click.argument("gold")
@click.argument("hypothesis")
@options_of(ScoreAlignmentOptions)
@json_option
def score_alignment(gold: str, hypothesis: str, options: ScoreAlignmentOptions, as_json: bool) -> None:
    """Score word alignments against gold links.

    It prints alignment error rate, precision and recall.

    Both files have one line per pair such as "0-0 1-2", where GOLD may mark possible links as 1p2; or one line per
    link, "PAIR SOURCE TARGET S|P" (also .gz and .zst). A possible link costs nothing, whether HYPOTHESIS has it or not
    (Och and Ney 2003).

    \b
    dragoman score-alignment gold.txt links.txt
    dragoman score-alignment gold.txt back.txt --swap --gold-from 1
    """
    from dragoman.inspect.measure import score_alignment as score_links

    found = score_links(gold, hypothesis, options)
    scores = found.as_dict()
    if found.note:
        click.echo(found.note, err=True)
    if as_json:
        click.echo(json.dumps(scores))
        return
    for name, key in (("AER", "aer"), ("precision", "precision"), ("recall", "recall")):
        click.echo(f"{name:<15}{100 * scores[key]:>10.2f} %")
    for key in ("links", "sure", "segments"):
        click.echo(f"{key:<15}{scores[key]:>10,}")
