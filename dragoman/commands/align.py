"""`dragoman align` and `dragoman score-alignment`: words linked with words."""

from __future__ import annotations

import json
import math
import sys

import click

from dragoman.commands.align_files import align_files
from dragoman.commands.labels import searched_only
from dragoman.commands.media import files_only, reads_files, texts_only
from dragoman.commands.options import device_option, json_option, media_option, skip_unreadable_option, tag_option
from dragoman.commands.printing import as_utf8
from dragoman.errors import DataError


@click.command()
@click.argument("run")
@click.argument("file", required=False)
@click.option("--source", help="Source lines of a pair of parallel files.")
@click.option("--target", help="Target lines, one for each source line.")
@click.option(
    "--predict", "predicting", is_flag=True,
    help="FILE or standard input has sources alone: print what the run writes, a tab and its links.",
)  # fmt: skip
@click.option(
    "--layer", help="Whose attention is read: a name, or a number from 1. [default: the last, of three or more the "
    "last but one; with --reverse the two that agree best]",
)  # fmt: skip
@click.option("--head", type=click.IntRange(1), help="One head alone. [default: the mean of all]")
@click.option("--shift", is_flag=True, help="Look at the step that reads a token, not at the one that writes it.")
@click.option(
    "--threshold", type=click.FloatRange(0.0, 1.0, min_open=True),
    help="Link all words with at least this weight. [default: each target word with the one it looks at most]",
)  # fmt: skip
@click.option("--reverse", help="A run that learned target to source: join the links of both directions.")
@click.option(
    "--combine", type=click.Choice(["intersection", "union", "grow-diag", "grow-diag-final-and"]),
    help="How the two directions of --reverse are joined. [default: grow-diag]",
)  # fmt: skip
@click.option("--gold", help="Hand-made links of these pairs: read the layer with the lowest error rate, and name it.")
@click.option("--gold-from", type=click.Choice(["0", "1"]), help="The number of the first word in the --gold file.")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Pairs at a time.")
@tag_option
@media_option
@skip_unreadable_option
@click.option(
    "--json", "as_json", is_flag=True,
    help="One object a line: source, target, links, weights; of files source, text, unit, words.",
)  # fmt: skip
@device_option
def align(
    run: str,
    file: str | None,
    source: str | None,
    target: str | None,
    predicting: bool,
    layer: str | None,
    head: int | None,
    shift: bool,
    threshold: float | None,
    reverse: str | None,
    combine: str | None,
    gold: str | None,
    gold_from: str | None,
    batch_size: int,
    tag: str | None,
    media: str | None,
    skip_unreadable: bool,
    as_json: bool,
    device: str,
) -> None:
    """Align words by attention: a line of links a pair, "0-0 1-2", source before target, counted from 0.

    FILE has a source and a target a line, tab-separated (or .jsonl, .parquet). Words are what whitespace parts,
    whatever units the run works on; the run must attend to its source. dragoman score-alignment compares the links
    with hand-made ones.

    Of a run that transcribes, FILE is a manifest, and every word gets a line: file, word, start, end (in seconds, or
    pixels of an image) and its probability, tab-separated. The places are where CTC writes the text, which is inside a
    word rather than from its first sound to its last.

    \b
    dragoman align runs/my pairs.tsv > links.txt
    dragoman align runs/my pairs.tsv --reverse runs/back               both directions, joined
    dragoman align runs/my pairs.tsv --gold few.txt --layer 2 --head 1
    echo "a line" | dragoman align runs/my --predict                   what the run writes, and its links
    dragoman align runs/speech recordings.tsv > words.tsv              when each word was said
    dragoman align runs/speech recordings/ --predict --json            the same of what the run hears
    """
    from dragoman.analysis.align_files import Aligner, as_json_line, choose_view, predict_pairs, read_parallel
    from dragoman.data.examples import Pairs
    from dragoman.data.readers.lines import read_lines
    from dragoman.inference.load import load_predictor
    from dragoman.runs import Run
    from dragoman.scoring.alignment import read_alignments

    opened = Run(run)
    files_only(opened, skip_unreadable, media)
    if reads_files(opened):
        align_files(opened, file, predicting, media, skip_unreadable, batch_size, as_json, device)
        return
    if predicting and (source is not None or target is not None):
        raise DataError("--predict reads sources alone, from FILE or standard input: leave out --source and --target")
    if not predicting and ((file is None) == (source is None) or (source is None) != (target is None)):
        raise DataError("name either FILE or both --source and --target, or add --predict to align what the run writes")
    for name, value, needed, other in (
        ("--combine", combine, "--reverse", reverse),
        ("--gold-from", gold_from, "--gold", gold),
    ):
        if value is not None and other is None:
            raise DataError(f"{name} needs {needed}")
    if threshold is not None and math.isnan(threshold):
        raise DataError("--threshold: found nan, expected a number")
    truth = None if gold is None else read_alignments(read_lines(gold), gold, None if not gold_from else int(gold_from))
    if reverse is not None:
        texts_only("align", reverse)
    searched_only("align", run, '"translate" or "transcribe"')
    predictor = load_predictor(run, device)
    backward = None if reverse is None else load_predictor(reverse, device)
    if predicting:
        pairs = predict_pairs(predictor, file, tag)
    else:
        files = Pairs(source, target) if source is not None and target is not None else str(file)
        pairs = read_parallel(predictor, files)
    aligner = Aligner(
        predictor, backward, threshold=threshold, combination=combine or "grow-diag", tag=tag, batch_size=batch_size
    )  # fmt: skip
    aligner = choose_view(
        aligner, pairs, layer=layer, head=head, shifted=shift, gold=truth, say=lambda text: click.echo(text, err=True)
    )
    as_utf8()
    for pair, found in zip(pairs, aligner(pairs), strict=True):
        sys.stdout.write(
            (as_json_line(found) if as_json else f"{pair[1]}\t{found}" if predicting else str(found)) + "\n"
        )
    sys.stdout.flush()


@click.command("score-alignment")
@click.argument("gold")
@click.argument("found")
@click.option(
    "--gold-from", type=click.Choice(["0", "1"]), help="The number of the first word in GOLD. [default: 0, or 1 where "
    "every line is one link]",
)  # fmt: skip
@click.option("--found-from", type=click.Choice(["0", "1"]), help="The same for FOUND.")
@click.option("--swap", is_flag=True, help="FOUND was made from the target to the source: turn its links round.")
@json_option
def score_alignment(
    gold: str, found: str, gold_from: str | None, found_from: str | None, swap: bool, as_json: bool
) -> None:
    """Score word alignments against hand-made ones: alignment error rate, precision, recall.

    Both files have one line a pair such as "0-0 1-2", where GOLD may mark possible links as 1p2; or one line a link,
    "PAIR SOURCE TARGET S|P" (also .gz and .zst). A possible link costs nothing, found or not (Och and Ney 2003).

    \b
    dragoman score-alignment gold.txt links.txt
    dragoman score-alignment gold.txt back.txt --swap --gold-from 1
    """
    from dragoman.data.readers.lines import read_lines
    from dragoman.scoring.alignment import alignment_score, read_alignments, swap_direction

    truth, other = (
        read_alignments(read_lines(path), path, None if first is None else int(first))
        for path, first in ((gold, gold_from), (found, found_from))
    )
    if not truth and not other:
        raise DataError(f"nothing to score: found no line in {gold} and {found}")
    links = [swap_direction(one.possible) if swap else one.possible for one in other]
    numbers = {number for one in truth for link in one.possible for number in link}
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
