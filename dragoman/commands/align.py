"""`dragoman align` and `dragoman score-alignment`: link words of a source with words of a target."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sized
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from dragoman.commands.align_files import align_files
from dragoman.commands.labels import refuse_options, require_search
from dragoman.commands.layout import ReadingOptions, pair_files
from dragoman.commands.media import check_media_options, reads_files, require_text_inputs
from dragoman.commands.options import device_option, json_option, tag_option
from dragoman.commands.printing import as_utf8
from dragoman.commands.progress import progress_bar
from dragoman.errors import DataError

if TYPE_CHECKING:
    from dragoman.analysis.alignment import Pair, WordAlignment
    from dragoman.data.examples import Pairs
    from dragoman.runs import Run

REPORTED = 1000  # pairs between two steps of the progress bar
FILES_NEEDED = "name either FILE or both --source and --target, or add --predict to align what the run outputs"


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@pair_files(reason=FILES_NEEDED)
@click.option(
    "--model", "kind", type=click.Choice(["ibm1", "ibm2", "ibm3", "hmm"]),
    help="Learn the alignment from the pairs themselves, without a run.",
)  # fmt: skip
@click.option("--learn-from", metavar="FILE", help="With --model: further pairs to learn from.")
@click.option("--iterations", type=click.IntRange(1), help="With --model: EM iterations of each model. [default: 5]")
@click.option(
    "--predict", "predicting", is_flag=True,
    help="FILE or standard input has sources alone: print the run's output, a tab and the links.",
)  # fmt: skip
@click.option(
    "--layer", help="Layer whose attention is read: a name, or a number from 1. [default: the last, of three or more "
    "the last but one; with --reverse the two that agree best]",
)  # fmt: skip
@click.option("--head", type=click.IntRange(1), help="Read one attention head. [default: the mean of all]")
@click.option("--shift", is_flag=True, help="Use the step that reads a token as input, not the step that outputs it.")
@click.option(
    "--threshold", type=click.FloatRange(0.0, 1.0, min_open=True),
    help="Link all words with at least this weight. [default: each target word with the word of highest weight]",
)  # fmt: skip
@click.option("--reverse", metavar="RUN", help="A run trained from target to source: combine the links of both.")
@click.option(
    "--combine", type=click.Choice(["intersection", "union", "grow-diag", "grow-diag-final-and"]),
    help="How the links of both directions are combined. [default: grow-diag; with --model grow-diag-final-and]",
)  # fmt: skip
@click.option("--gold", metavar="FILE", help="Gold links of these pairs: read the layer with the lowest error rate.")
@click.option("--gold-from", type=click.Choice(["0", "1"]), help="The number of the first word in the --gold file.")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Pairs in a batch.")
@tag_option
@click.option("--media", metavar="PATH", help="Folder or archive with the files of a manifest. [default: the run's]")
@click.option("--skip-unreadable", is_flag=True, help="Leave out and count recordings or pictures that cannot be read.")
@click.option(
    "--json", "as_json", is_flag=True,
    help="One object per line: source, target, links, weights; for files source, text, unit, words.",
)  # fmt: skip
@device_option
def align(
    run: str | None,
    files: str | Pairs | None,
    kind: str | None,
    learn_from: str | None,
    iterations: int | None,
    predicting: bool,
    media: str | None,
    skip_unreadable: bool,
    as_json: bool,
    device: str,
    **given: Any,
) -> None:
    """Align words: one line of links per pair, "0-0 1-2", source before target, counted from 0.

    Each line of FILE has a source and a target, tab-separated (or .jsonl, .parquet). Words are separated by
    whitespace, whatever units the run works on; single words (spelling, pronunciation) are aligned by letters. The
    run must attend to its source. dragoman score-alignment compares the links with gold links.

    A run of preset word-aligner aligns other pairs by what it learned.

    With --model no run is needed: both directions of IBM model 1, 2 or 3 or of an HMM are learned from the pairs by EM
    and combined. --json then has the probabilities of all links as weights.

    For a run that transcribes, FILE is a manifest, and every word gets a line: file, word, start, end (in seconds, or
    pixels of an image) and probability, tab-separated. The times are those of CTC's frames, which lie inside a word
    rather than at its first and last sound.

    \b
    dragoman align --model hmm pairs.tsv > links.txt
    dragoman align --model hmm test.tsv --learn-from corpus.tsv.gz --combine intersection
    dragoman align runs/my pairs.tsv > links.txt
    dragoman align runs/my pairs.tsv --reverse runs/back               both directions, combined
    dragoman align runs/my pairs.tsv --gold few.txt --layer 2 --head 1
    echo "a line" | dragoman align runs/my --predict                   the run's output and its links
    dragoman align runs/speech recordings.tsv > words.tsv              when each word was said
    dragoman align runs/speech recordings/ --predict --json            the same for the run's transcript
    """
    from dragoman.data.examples import Pairs
    from dragoman.runs import Run

    if kind is not None:
        align_raw(run if files is None else files, RawOptions(kind, learn_from, iterations or 5), given, as_json)
        return
    for name, value in (("--learn-from", learn_from), ("--iterations", iterations)):
        if value is not None:
            raise DataError(f"{name} needs --model")
    if run is None:
        raise DataError("nothing to align with: name a run, or choose a model of the pairs with --model hmm")
    opened = Run(run)
    check_media_options(opened, ReadingOptions(media=media, skip_unreadable=skip_unreadable))
    if reads_files(opened):
        file = files if isinstance(files, str) else None
        align_files(opened, file, predicting, media, skip_unreadable, given["batch_size"], as_json, device)
        return
    if predicting and isinstance(files, Pairs):
        raise DataError("--predict reads sources alone, from FILE or standard input: leave out --source and --target")
    if not predicting and files is None:
        raise DataError(FILES_NEEDED)
    if opened.config.model.kind == "word-aligner":
        align_by_word_aligner(opened, files, given, predicting, as_json, device)
        return
    align_texts(run, files, AlignOptions(**given), predicting, as_json, device)


ALIGNER_ARGUMENTS = {
    "run", "file", "source", "target", "predicting", "threshold", "combine", "batch_size", "tag", "as_json", "device",
}  # fmt: skip


def align_by_word_aligner(
    run: Run, files: str | Pairs | None, given: dict[str, Any], predicting: bool, as_json: bool, device: str
) -> None:
    """Print the links of every pair by a run that is a word aligner of both directions."""
    from dragoman.analysis.align_files import predict_pairs, read_parallel
    from dragoman.analysis.word_alignment import RunAligner
    from dragoman.inference.load import load_predictor

    refuse_options(run, ALIGNER_ARGUMENTS, "reads attention; {run} is a word aligner of both directions")
    predictor = load_predictor(run.folder, device)
    if predicting:
        assert files is None or isinstance(files, str)
        pairs = predict_pairs(predictor, files, given["tag"])
    else:
        assert files is not None
        pairs = read_parallel(predictor.config.data, files)
    aligner = RunAligner(predictor)
    alignments = aligner(pairs, given["combine"] or "grow-diag-final-and", given["threshold"], given["tag"])
    print_links(pairs, alignments, predicting, as_json)


class RawOptions(NamedTuple):
    """The options of a model that learns from the pairs themselves."""

    kind: str
    learn_from: str | None
    iterations: int


RAW_ARGUMENTS = {
    "run", "file", "source", "target", "kind", "learn_from", "iterations", "threshold", "combine", "as_json", "device",
}  # fmt: skip


def align_raw(files: str | Pairs | None, options: RawOptions, given: dict[str, Any], as_json: bool) -> None:
    """Learn an alignment model from pairs, and print the links of every pair."""
    from dragoman.analysis.align_files import read_raw_pairs
    from dragoman.analysis.word_alignment import RawAligner
    from dragoman.training.display import Display

    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in RAW_ARGUMENTS and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise DataError(f"{parameter.opts[0]} goes with a run, found --model {options.kind}")
    if files is None:
        raise DataError("name either FILE or both --source and --target")
    pairs = read_raw_pairs(files)
    more: Iterable[Pair] = [] if options.learn_from is None else read_raw_pairs(options.learn_from)
    with Display(quiet=not sys.stderr.isatty()) as display:
        aligner = RawAligner(options.kind, options.iterations, chain(pairs, more), display.preparing)
    alignments = aligner(pairs, given["combine"] or "grow-diag-final-and", given["threshold"], weights=as_json)
    print_links(pairs, alignments, False, as_json)


@dataclass(frozen=True)
class AlignOptions:
    """The options of `dragoman align` for texts."""

    layer: str | None
    head: int | None
    shift: bool
    threshold: float | None
    reverse: str | None
    combine: str | None
    gold: str | None
    gold_from: str | None
    batch_size: int
    tag: str | None

    def __post_init__(self) -> None:
        for name, value, needed, other in (
            ("--combine", self.combine, "--reverse", self.reverse),
            ("--gold-from", self.gold_from, "--gold", self.gold),
        ):
            if value is not None and other is None:
                raise DataError(f"{name} needs {needed}")
        if self.threshold is not None and math.isnan(self.threshold):
            raise DataError("--threshold: found nan, expected a number")


def align_texts(
    run: str, files: str | Pairs | None, options: AlignOptions, predicting: bool, as_json: bool, device: str
) -> None:
    """Print the links of every pair."""
    from dragoman.analysis.align_files import Aligner, choose_view, predict_pairs, read_parallel
    from dragoman.data.readers.lines import read_lines
    from dragoman.inference.load import load_predictor
    from dragoman.scoring.alignment import read_alignments

    gold = None
    if options.gold is not None:
        first = None if not options.gold_from else int(options.gold_from)
        gold = read_alignments(read_lines(options.gold), options.gold, first)
    if options.reverse is not None:
        require_text_inputs("align", options.reverse)
    require_search("align", run, '"translate" or "transcribe"')
    predictor = load_predictor(run, device)
    backward = None if options.reverse is None else load_predictor(options.reverse, device)
    if predicting:
        assert files is None or isinstance(files, str)
        pairs = predict_pairs(predictor, files, options.tag)
    else:
        assert files is not None
        pairs = read_parallel(predictor.config.data, files)
    aligner = choose_view(
        Aligner(
            predictor,
            backward,
            threshold=options.threshold,
            symmetrization=options.combine or "grow-diag",
            tag=options.tag,
            batch_size=options.batch_size,
        ),
        pairs,
        layer=options.layer,
        head=options.head,
        shifted=options.shift,
        gold=gold,
        log=lambda text: click.echo(text, err=True),
    )
    print_links(pairs, aligner(pairs), predicting, as_json)


def print_links(pairs: Iterable[Pair], alignments: Iterable[WordAlignment], predicting: bool, as_json: bool) -> None:
    """One line for every pair; with `predicting` it begins with the output."""
    from dragoman.analysis.align_files import as_json_line

    as_utf8()
    watched = sys.stderr.isatty() and not sys.stdout.isatty()
    total = len(pairs) if isinstance(pairs, Sized) else None
    with progress_bar("pairs", total) if watched else nullcontext(lambda count: None) as done:
        for number, (pair, links) in enumerate(zip(pairs, alignments, strict=True), 1):
            sys.stdout.write(
                (as_json_line(links) if as_json else f"{pair[1]}\t{links}" if predicting else str(links)) + "\n"
            )
            if number % REPORTED == 0:
                done(REPORTED)
    sys.stdout.flush()


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
    """Score word alignments against gold links: alignment error rate, precision, recall.

    Both files have one line per pair such as "0-0 1-2", where GOLD may mark possible links as 1p2; or one line per
    link, "PAIR SOURCE TARGET S|P" (also .gz and .zst). A possible link costs nothing, whether HYPOTHESIS has it or not
    (Och and Ney 2003).

    \b
    dragoman score-alignment gold.txt links.txt
    dragoman score-alignment gold.txt back.txt --swap --gold-from 1
    """
    from dragoman.data.readers.lines import read_lines
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
