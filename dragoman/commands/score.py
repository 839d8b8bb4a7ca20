"""`dragoman score` and `dragoman score-alignment`: score texts, or links of words, without a model."""

from __future__ import annotations

import json
from typing import Any

import click

from dragoman.commands.options import draws_option, json_option, metric_option, seed_option, units_option
from dragoman.commands.printing import as_utf8, print_scores
from dragoman.data.readers.lines import read_lines
from dragoman.errors import DataError


@click.command()
@click.argument("hypotheses")
@click.argument("references", nargs=-1, required=True)
@metric_option
@units_option
@click.option("--intervals", is_flag=True, help="Add 95 % confidence intervals, by bootstrap over segments.")
@click.option("--source", help="Source lines, for the breakdowns below and for --metric f0.5.")
@click.option("--by-length", is_flag=True, help="Also by words of the source, or without --source of the reference.")
@click.option("--by-frequency", metavar="FILE", help="Also by the frequency of the rarest source word in FILE.")
@click.option("--by-tag", metavar="FILE", help="Also by the label on each line of FILE; that of '<2de> text' is de.")
@click.option("--ngrams", is_flag=True, help="Take BLEU apart: precisions, brevity penalty, matching n-grams by line.")
@click.option("--alignment", is_flag=True, help="Show every line aligned with its reference, with S, I and D counts.")
@click.option("--characters", is_flag=True, help="Align characters instead of words.")
@click.option(
    "--all-alignments", is_flag=True,
    help="With --alignment, show all equally cheap alignments of a line, at most 100, not only one.",
)  # fmt: skip
@click.option("--table", is_flag=True, help="With --alignment, also print the table of edit costs.")
@click.option("--substitution", type=click.IntRange(0), default=1, help="Cost of a replacement.")
@click.option("--plot", metavar="FILE", help="Draw the first metric by group, or the edit table of the first line.")
@draws_option
@seed_option
@json_option
def score(hypotheses: str, references: tuple[str, ...], **options: Any) -> None:
    """Score texts against references, without a model.

    HYPOTHESES is scored line by line. A line of REFERENCES may hold several references, tab-separated.

    \b
    dragoman score out.txt ref.txt --intervals
    dragoman score out.txt ref.txt --source src.txt --by-length --metric bleu --plot lengths.png
    dragoman score out.txt ref.txt --metric bleu --ngrams
    dragoman score out.txt ref.txt --alignment --characters --substitution 2
    """
    from dragoman.reports.score_files import ScoreOptions, score_report

    request = ScoreOptions(hypotheses, references, **options)
    scores, lines = score_report(request)
    as_utf8()
    if not request.as_json:
        for line in lines:
            click.echo(line)
    print_scores(scores, request.as_json)


@click.command("score-alignment")
@click.argument("gold")
@click.argument("hypothesis")
@click.option(
    "--gold-from", type=click.Choice(["0", "1"]), help="The number of the first word in GOLD. [default: 0, or 1 where "
    "every line is one link]",
)  # fmt: skip
@click.option("--hypothesis-from", type=click.Choice(["0", "1"]), help="The same for HYPOTHESIS.")
@click.option("--swap", is_flag=True, help="HYPOTHESIS has target words first: swap the sides of its links.")
@json_option
def score_alignment(
    gold: str, hypothesis: str, gold_from: str | None, hypothesis_from: str | None, swap: bool, as_json: bool
) -> None:
    """Score word alignments against gold links.

    It prints alignment error rate, precision and recall.

    Both files have one line per pair such as "0-0 1-2", where GOLD may mark possible links as 1p2; or one line per
    link, "PAIR SOURCE TARGET S|P" (also .gz and .zst). A possible link costs nothing, whether HYPOTHESIS has it or not
    (Och and Ney 2003).

    \b
    dragoman score-alignment gold.txt links.txt
    dragoman score-alignment gold.txt back.txt --swap --gold-from 1
    """
    from dragoman.scoring.alignment import alignment_score, read_alignments, swap_direction

    truth, other = (
        read_alignments(read_lines(path), path, None if first is None else int(first))
        for path, first in ((gold, gold_from), (hypothesis, hypothesis_from))
    )
    if not truth and not other:
        raise DataError(f"nothing to score: found no line in {gold} and {hypothesis}")
    links = [swap_direction(row.possible) if swap else row.possible for row in other]
    numbers = {number for row in truth for link in row.possible for number in link}
    if gold_from is None and numbers and 0 not in numbers:
        click.echo(f"{gold}: found no word 0; if its words count from 1, add --gold-from 1", err=True)
    scores = alignment_score(links, truth).as_dict()
    if as_json:
        click.echo(json.dumps(scores))
        return
    for name, key in (("AER", "aer"), ("precision", "precision"), ("recall", "recall")):
        click.echo(f"{name:<15}{100 * scores[key]:>10.2f} %")
    for key in ("links", "sure", "segments"):
        click.echo(f"{key:<15}{scores[key]:>10,}")
