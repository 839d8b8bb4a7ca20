"""`dragoman align` and `dragoman terms`: link words of a source with words of a target, or with places in a file."""

from __future__ import annotations

import json
import sys

import click

from dragoman.base import progress
from dragoman.commands.from_record import options_of
from dragoman.commands.inputs import pair_files
from dragoman.commands.options import device_option
from dragoman.commands.printing import as_data, print_message, print_warning
from dragoman.data import Pairs
from dragoman.inference.align import AlignOptions, TermOptions

REPORTED = 100  # alignments between two steps of the progress bar
FILES_NEEDED = "name either FILE or both --source and --target, or add --predict to align what the run outputs"


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@pair_files(reason=FILES_NEEDED)
@options_of(AlignOptions)
@click.option(
    "--json", "as_json", is_flag=True,
    help="One object per line: source, target, links, weights; for files source, text, unit, words.",
)  # fmt: skip
@device_option
def align(run: str | None, files: str | Pairs | None, options: AlignOptions, as_json: bool, device: str) -> None:
    """Align the words of pairs, or of recordings with times.

    It prints one line of links per pair, such as "0-0 1-2": source before target, counted from 0.

    Each line of FILE has a source and a target, tab-separated (or .jsonl, .parquet). Words are separated by
    whitespace, whatever units the run works on; single words (spelling, pronunciation) are aligned by letters. The
    run must attend to its source. dragoman score-alignment compares the links with gold links.

    A run of preset word-aligner aligns other pairs by what it learned.

    With --model no run is needed: both directions of IBM model 1, 2 or 3 or of an HMM are learned from the pairs by EM
    and combined. --json then has the probabilities of all links as weights. By default a prior favours words with few
    translations (Riley and Gildea 2012), which aligns rare words better; --prior 0 is the EM of the papers.

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
    from dragoman.inference import StreamOptions
    from dragoman.inference.align import align as align_words

    if options.model is not None:
        run, files = None, run if files is None else files
    stream, log = StreamOptions(on_warning=print_warning), lambda line: print_message(printable(line))
    alignments = align_words(run, files, options, device=device, stream=stream, weights=as_json, log=log)
    as_data()
    with progress("alignments", output=True) as done:
        for number, aligned in enumerate(alignments, 1):
            lines = [aligned.as_json_line()] if as_json else aligned.lines()
            sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
            if number % REPORTED == 0:
                done(REPORTED)
    sys.stdout.flush()


def printable(line: str) -> str:
    """A line with the names of files, of which some bytes may not be UTF-8: those are replaced."""
    return line.encode("utf-8", "replace").decode()


@click.command()
@pair_files(required=True)
@options_of(TermOptions)
@click.option("--json", "as_json", is_flag=True, help="One object per line: source, target, times, share.")
def terms(files: str | Pairs, options: TermOptions, as_json: bool) -> None:
    """Extract terms and their translations from pairs.

    terms aligns the words of all pairs, and prints the words and phrases that are mostly translated in one way: source,
    target, count and share, tab-separated, most frequent first. Its first two columns are a file for
    predict constraints.terminology=FILE.

    \b
    dragoman terms pairs.tsv > terms.tsv
    dragoman terms --source a.en --target a.de --max-words 2 --min-count 10
    dragoman terms pairs.tsv | cut -f 1,2 > list.tsv
    dragoman predict runs/my input.txt constraints.terminology=list.tsv
    """
    from dragoman.inference.align import terms as extract_terms

    extracted = extract_terms(files, options)
    as_data()
    for term in extracted:
        row = (term.source, term.target, str(term.times), f"{term.share:.3f}")
        sys.stdout.write((json.dumps(term._asdict(), ensure_ascii=False) if as_json else "\t".join(row)) + "\n")
    if not extracted:
        print_message("found no term; lower --min-count or --min-share")
