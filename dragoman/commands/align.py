"""`dragoman align` and `dragoman terms`: link words of a source with words of a target, or with places in a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from dragoman.commands import inputs
from dragoman.commands.checks import require_search
from dragoman.commands.from_record import options_of
from dragoman.commands.options import device_option
from dragoman.commands.printing import as_utf8, print_message, print_warning
from dragoman.data.examples import Pairs
from dragoman.data.inputs import ReadingOptions, media_inputs
from dragoman.data.media.files import is_media
from dragoman.errors import DataError
from dragoman.inference.alignments import AlignOptions, ForcedAlignment, TermOptions, WordAlignment
from dragoman.progress import progress

if TYPE_CHECKING:
    from dragoman.runs import Run

REPORTED = 1000  # pairs between two steps of the progress bar
FILES_NEEDED = "name either FILE or both --source and --target, or add --predict to align what the run outputs"


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@inputs.pair_files(reason=FILES_NEEDED)
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
    from dragoman.analysis import align as library
    from dragoman.inference.inputs import StreamOptions
    from dragoman.inference.open_inputs import check_reading, reads_files
    from dragoman.runs import Run

    if options.model is not None:
        run, files = None, run if files is None else files
    stream = StreamOptions(on_warning=print_warning)
    if run is not None:
        opened = Run(run)
        check_reading(opened, ReadingOptions(media=options.media, skip_unreadable=options.skip_unreadable))
        if reads_files(opened):
            align_files(opened, files if isinstance(files, str) else None, options, as_json, device)
            return
        require_search("align", run, '"translate" or "transcribe"')
    if options.reverse is not None:
        require_search("align", options.reverse, '"translate" or "transcribe"', text=True)
    aligned = library.align(run, files, options, device=device, stream=stream, weights=as_json, log=print_message)
    print_alignments(aligned, as_json)


def print_alignments(
    alignments: Iterable[WordAlignment | ForcedAlignment], as_json: bool, unit: str = "pairs", total: int | None = None
) -> None:
    """The lines of every pair or file."""
    as_utf8()
    with progress(unit, total, output=True) as done:
        for number, aligned in enumerate(alignments, 1):
            lines = [aligned.as_json_line()] if as_json else aligned.lines()
            sys.stdout.write("".join(f"{line}\n" for line in lines))
            if unit == "files" or number % REPORTED == 0:
                done(1 if unit == "files" else REPORTED)
    sys.stdout.flush()


# --- runs that read recordings or images of lines: when or where each word occurs


class FileInput(NamedTuple):
    """A file with its text."""

    name: str
    line: str  # where the file is named, for errors
    path: str
    text: str = ""


def align_files(run: Run, file: str | None, options: AlignOptions, as_json: bool, device: str) -> None:
    """Print one line per word, or with --json one object per file."""
    from dragoman.analysis import align as library
    from dragoman.inference.inputs import StreamOptions

    files = (listed_inputs if options.predict else manifest_inputs)(run, file, options.media)
    unreadable = dict[str, str]()
    stream = StreamOptions(
        input_name=lambda number: files[number - 1].line,
        on_unreadable=lambda fault: unreadable.__setitem__(fault.location, str(fault)),
    )
    data = [item.path if options.predict else (item.path, item.text) for item in files]
    too_long, empty, unknown = list[str](), list[str](), list[str]()

    def named() -> Iterator[ForcedAlignment]:
        aligned = library.align(run.folder, data, options, device=device, stream=stream)
        for item, placed in zip(files, aligned, strict=True):
            assert isinstance(placed, ForcedAlignment)
            if item.line in unreadable:
                continue
            if not placed.fits:
                too_long.append(item.name)
            elif not placed.words:
                empty.append(item.name)
            else:
                unknown.extend(word for word, place in placed.words if place is None)
            yield replace(placed, source=inputs.printable(item.name))

    print_alignments(named(), as_json, "files", len(files))
    print_first("too few frames for the text, so its words have no positions", too_long)
    print_first("the text is empty, so there is no word to place", empty)
    words = f"{len(unknown):,} word{'s' * (len(unknown) > 1)}"
    print_first(f"no position for {words} outside the vocabulary", list(dict.fromkeys(unknown)))
    inputs.print_unreadable([*unreadable.values()], "nothing is written for them")


def manifest_inputs(run: Run, file: str | None, media: str | None) -> list[FileInput]:
    if file is None or is_media(file):
        raise DataError(f"found {file or 'nothing'}, expected a manifest of files and texts; or add --predict")
    data = ReadingOptions(media=media).applied(run.config.data, file, print_warning)
    examples = inputs.read_examples(run, file, "pair", data, several_references=True, purpose="align")
    return [FileInput(item.source, item.location, item.model_input, item.references[0]) for item in examples]


def listed_inputs(run: Run, file: str | None, media: str | None) -> list[FileInput]:
    """The files that FILE stands for: itself, or those in a folder, an archive, a manifest or a list."""
    config, path = run.config, None if file is None else Path(file)
    reading = ReadingOptions(media=media)
    named = enumerate(media_inputs(path, config.data, config.tokenizer.source, reading, print_warning), 1)
    files = [FileInput(one.name, one.place or f"input {number}", one.path) for number, one in named if one.path.strip()]
    if not files:
        raise DataError(f"{file or 'standard input'}: found no name of a file, expected one or more")
    return files


def print_first(message: str, names: list[str]) -> None:
    if names:
        more = f" (and {len(names) - 3:,} more)" if len(names) > 3 else ""
        print_message(f"{message}: {', '.join(map(inputs.printable, names[:3]))}{more}")


@click.command()
@inputs.pair_files(required=True)
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
    from dragoman.analysis import align as library

    extracted = library.terms(files, options)
    as_utf8()
    for term in extracted:
        row = (term.source, term.target, str(term.times), f"{term.share:.3f}")
        click.echo(json.dumps(term._asdict(), ensure_ascii=False) if as_json else "\t".join(row))
    if not extracted:
        print_message("found no term; lower --min-count or --min-share")
