"""`dragoman score`: score texts without a model."""

from __future__ import annotations

from typing import Any

import click

from dragoman.commands.options import draws_option, json_option, metric_option, seed_option, units_option
from dragoman.commands.printing import as_utf8, print_scores


@click.command()
@click.argument("hypotheses")
@click.argument("references", nargs=-1, required=True)
@metric_option
@units_option
@click.option("--intervals", is_flag=True, help="Add 95 % confidence intervals, by bootstrap over segments.")
@click.option("--source", help="Source lines, for the breakdowns below.")
@click.option(
    "--by-length",
    is_flag=True,
    help="Also by words of the source, or without --source of the reference.",
)
@click.option("--by-frequency", metavar="FILE", help="Also by the frequency of the rarest source word in FILE.")
@click.option("--by-tag", metavar="FILE", help="Also by the label on each line of FILE; that of '<2de> text' is de.")
@click.option("--alignment", is_flag=True, help="Show every line aligned with its reference, with S, I and D counts.")
@click.option("--characters", is_flag=True, help="Align characters instead of words.")
@click.option(
    "--all-alignments", is_flag=True,
    help="With --alignment, show all equally cheap alignments of a line, at most 100, not only one.",
)  # fmt: skip
@click.option("--table", is_flag=True, help="With --alignment, also print the table of edit costs.")
@click.option("--substitution", type=click.IntRange(0), default=1, show_default=True, help="Cost of a replacement.")
@click.option("--plot", metavar="FILE", help="Draw the first metric by group, or the edit table of the first line.")
@draws_option
@seed_option
@json_option
def score(hypotheses: str, references: tuple[str, ...], **options: Any) -> None:
    """Score text without a model: HYPOTHESES and one or more REFERENCES files, line by line.

    A reference line may hold several references, tab-separated.

    \b
    dragoman score out.txt ref.txt --intervals
    dragoman score out.txt ref.txt --source src.txt --by-length --metric bleu --plot lengths.png
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
