"""`dragoman align` and `dragoman terms`: link words of a source with words of a target, or with places in a file."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence, Sized
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dragoman.commands import inputs
from dragoman.commands.checks import refuse_options, require_search
from dragoman.commands.options import device_option, tag_option
from dragoman.commands.printing import as_utf8, print_message, print_warning
from dragoman.data.examples import Fault, Pairs
from dragoman.data.inputs import ReadingOptions, media_inputs
from dragoman.data.media.files import is_media
from dragoman.data.readers.lines import read_lines
from dragoman.errors import DataError
from dragoman.progress import progress
from dragoman.training.display import Display

if TYPE_CHECKING:
    from dragoman.analysis.alignment import Pair, WordAlignment
    from dragoman.inference.predictor import Predictor
    from dragoman.runs import Run

MODELS = ("ibm1", "ibm2", "ibm3", "hmm")
REPORTED = 1000  # pairs between two steps of the progress bar
WINDOW = 256  # files whose features are in memory together
FILES_NEEDED = "name either FILE or both --source and --target, or add --predict to align what the run outputs"
# The arguments of a model that learns from the pairs, of a run that is a word aligner, and of a run that reads files.
RAW_ARGUMENTS = {
    "run", "file", "source", "target", "kind", "learn_from", "iterations", "prior", "threshold", "combine", "as_json",
    "device",
}  # fmt: skip
ALIGNER_ARGUMENTS = {
    "run", "file", "source", "target", "predicting", "threshold", "combine", "batch_size", "tag", "as_json", "device",
}  # fmt: skip
FILE_ARGUMENTS = {"run", "file", "predicting", "media", "skip_unreadable", "batch_size", "as_json", "device"}


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@inputs.pair_files(reason=FILES_NEEDED)
@click.option(
    "--model", "kind", type=click.Choice(MODELS),
    help="Learn the alignment from the pairs themselves, without a run.",
)  # fmt: skip
@click.option("--learn-from", metavar="FILE", help="With --model: further pairs to learn from.")
@click.option("--iterations", type=click.IntRange(1), help="With --model: EM iterations of each model. [default: 5]")
@click.option(
    "--prior", type=click.FloatRange(0.0),
    help="With --model: Dirichlet prior of the translations of a word; 0 is plain EM. [default: 0.01]",
)  # fmt: skip
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
@click.option("--batch-size", type=click.IntRange(1), default=32, help="Pairs in a batch.")
@tag_option
@click.option("--media", metavar="PATH", help="Folder or archive with the files of a manifest. [default: the run's]")
@click.option("--skip-unreadable", is_flag=True, help="Leave out and count recordings or pictures that cannot be read.")
@click.option(
    "--json", "as_json", is_flag=True,
    help="One object per line: source, target, links, weights; for files source, text, unit, words.",
)  # fmt: skip
@device_option
def align(run: str | None, files: str | Pairs | None, **given: Any) -> None:
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
    from dragoman.inference.open_inputs import check_reading, reads_files
    from dragoman.runs import Run

    options = SimpleNamespace(**given)
    if options.kind is not None:
        align_raw(run if files is None else files, options)
        return
    for name in ("learn_from", "iterations", "prior"):
        if getattr(options, name) is not None:
            raise DataError(f"--{name.replace('_', '-')} needs --model")
    if run is None:
        raise DataError("nothing to align with: name a run, or choose a model of the pairs with --model hmm")
    opened = Run(run)
    check_reading(opened, ReadingOptions(media=options.media, skip_unreadable=options.skip_unreadable))
    if reads_files(opened):
        align_files(opened, files if isinstance(files, str) else None, options)
        return
    if options.predicting and isinstance(files, Pairs):
        raise DataError("--predict reads sources alone, from FILE or standard input: leave out --source and --target")
    if not options.predicting and files is None:
        raise DataError(FILES_NEEDED)
    if opened.config.model.kind == "word-aligner":
        align_by_word_aligner(opened, files, options)
    else:
        align_texts(run, files, options)


def align_raw(files: str | Pairs | None, options: SimpleNamespace) -> None:
    """Learn an alignment model from the pairs themselves, and print the links of every pair."""
    from dragoman.analysis.alignment import read_raw_pairs
    from dragoman.analysis.word_alignment import RawAligner
    from dragoman.classical.word_alignment import PRIOR

    refuse_options(None, RAW_ARGUMENTS, f"goes with a run, found --model {options.kind}")
    if files is None:
        raise DataError("name either FILE or both --source and --target")
    pairs = read_raw_pairs(files)
    more: Iterable[Pair] = [] if options.learn_from is None else read_raw_pairs(options.learn_from)
    prior = PRIOR if options.prior is None else options.prior
    with Display(quiet=not sys.stderr.isatty()) as display:
        aligner = RawAligner(options.kind, options.iterations or 5, chain(pairs, more), display.preparing, prior)
    combine = options.combine or "grow-diag-final-and"
    print_links(pairs, aligner(pairs, combine, options.threshold, weights=options.as_json), options)


def align_by_word_aligner(run: Run, files: str | Pairs | None, options: SimpleNamespace) -> None:
    """Print the links of every pair by a run that is a word aligner of both directions."""
    from dragoman.analysis.word_alignment import RunAligner
    from dragoman.inference.load import load_predictor

    refuse_options(run, ALIGNER_ARGUMENTS, "reads attention; {run} is a word aligner of both directions")
    predictor = load_predictor(run.folder, options.device)
    pairs = pairs_of(predictor, files, options)
    combine = options.combine or "grow-diag-final-and"
    print_links(pairs, RunAligner(predictor)(pairs, combine, options.threshold, options.tag), options)


def align_texts(run: str, files: str | Pairs | None, options: SimpleNamespace) -> None:
    """Print the links of every pair by the attention of a run."""
    from dragoman.analysis.alignment import Aligner
    from dragoman.inference.load import load_predictor
    from dragoman.scoring.alignment import read_alignments

    for name, needed in (("combine", "reverse"), ("gold_from", "gold")):
        if getattr(options, name) is not None and getattr(options, needed) is None:
            raise DataError(f"--{name.replace('_', '-')} needs --{needed}")
    if options.threshold is not None and math.isnan(options.threshold):
        raise DataError("--threshold: found nan, expected a number")
    first = int(options.gold_from) if options.gold_from else None
    gold = read_alignments(read_lines(options.gold), options.gold, first) if options.gold is not None else None
    tasks = '"translate" or "transcribe"'
    if options.reverse is not None:
        require_search("align", options.reverse, tasks, text=True)
    require_search("align", run, tasks)
    predictor = load_predictor(run, options.device)
    backward = None if options.reverse is None else load_predictor(options.reverse, options.device)
    pairs = pairs_of(predictor, files, options)
    aligner = Aligner(
        predictor,
        backward,
        threshold=options.threshold,
        symmetrization=options.combine or "grow-diag",
        tag=options.tag,
        batch_size=options.batch_size,
    )
    aligner = aligner.choose_view(pairs, options.layer, options.head, options.shift, gold, print_message)
    print_links(pairs, aligner(pairs), options)


def pairs_of(predictor: Predictor, files: str | Pairs | None, options: SimpleNamespace) -> list[Pair]:
    """The pairs of files, or with --predict the lines of a file with the run's outputs."""
    from dragoman.analysis.alignment import FilePairs, predict_pairs

    if options.predicting:
        assert not isinstance(files, Pairs)
        return predict_pairs(predictor, files, options.tag)
    assert files is not None
    return list(FilePairs(predictor.config.data, files))


def print_links(pairs: Iterable[Pair], alignments: Iterable[WordAlignment], options: SimpleNamespace) -> None:
    """One line for every pair; with --predict it begins with the output."""
    as_utf8()
    with progress("pairs", len(pairs) if isinstance(pairs, Sized) else None, output=True) as done:
        for number, (pair, links) in enumerate(zip(pairs, alignments, strict=True), 1):
            line = f"{pair[1]}\t{links}" if options.predicting else str(links)
            sys.stdout.write((links.as_json_line() if options.as_json else line) + "\n")
            if number % REPORTED == 0:
                done(REPORTED)
    sys.stdout.flush()


# --- runs that read recordings or images of lines: when or where each word occurs


class FileInput(NamedTuple):
    """A file with its text."""

    name: str
    line: str  # where the file is named, for errors
    path: str
    text: str = ""


def align_files(run: Run, file: str | None, options: SimpleNamespace) -> None:
    """Print one line per word, or with --json one object per file."""
    from dragoman.analysis.ctc_alignment import require_transcriber
    from dragoman.inference.load import load_predictor

    refuse_options(run, FILE_ARGUMENTS, 'goes with texts; {run} has task = "{task}"')
    predictor = load_predictor(run.folder, options.device)
    require_transcriber(predictor)
    files = (listed_inputs if options.predicting else manifest_inputs)(run, file, options.media)
    unreadable: list[Any] = []
    too_long: list[str] = []
    empty: list[str] = []
    unknown: list[str] = []
    as_utf8()
    with progress("files", len(files), output=True) as done:
        for first in range(0, len(files), WINDOW):
            for file_input, placed in place_words(predictor, files[first : first + WINDOW], options, unreadable):
                if not placed.fits:
                    too_long.append(file_input.name)
                elif not placed.words:
                    empty.append(file_input.name)
                else:
                    unknown += [word for word, place in placed.words if place is None]
                name = inputs.printable(file_input.name)
                lines = [placed.as_json_line(name)] if options.as_json else map("\t".join, placed.rows(name))
                sys.stdout.write("".join(f"{line}\n" for line in lines))
                done(1)
    sys.stdout.flush()
    print_first("too few frames for the text, so its words have no positions", too_long)
    print_first("the text is empty, so there is no word to place", empty)
    words = f"{len(unknown):,} word{'s' * (len(unknown) > 1)}"
    print_first(f"no position for {words} outside the vocabulary", list(dict.fromkeys(unknown)))
    inputs.print_unreadable(unreadable, "nothing is written for them")


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


def place_words(
    predictor: Predictor, named: Sequence[FileInput], options: SimpleNamespace, unreadable: list[Any]
) -> list[tuple[FileInput, Any]]:
    """Every input with the positions of its words; a file that cannot be read is an error, or added to `unreadable`."""
    from dragoman.analysis.ctc_alignment import force_align, read_media, transcribe

    files, features = [], []
    for item, content in zip(named, read_media(predictor, [item.path for item in named]), strict=True):
        if not isinstance(content, Fault):
            files.append(item)
            features.append(content)
        elif options.skip_unreadable:
            unreadable.append(f"{item.line}: {content}")
        else:
            raise DataError(f"{item.line}: {content}; leave such files out with --skip-unreadable")
    texts = [item.text for item in files]
    if options.predicting:
        texts = transcribe(predictor, [item.path for item in files], features, options.batch_size)
    return list(zip(files, force_align(predictor, features, texts, options.batch_size), strict=True))


def print_first(message: str, names: list[str]) -> None:
    if names:
        more = f" (and {len(names) - 3:,} more)" if len(names) > 3 else ""
        print_message(f"{message}: {', '.join(map(inputs.printable, names[:3]))}{more}")


@click.command()
@inputs.pair_files(required=True)
@click.option("--model", type=click.Choice(MODELS), default="hmm", help="The word alignment model.")
@click.option("--max-words", type=click.IntRange(1, 7), default=3, help="Words of a term.")
@click.option("--min-count", type=click.IntRange(1), default=3, help="Occurrences of the pair.")
@click.option(
    "--min-share", type=click.FloatRange(0.0, 1.0), default=0.5,
    help="Share of the source term's occurrences that have this translation.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One object per line: source, target, times, share.")
def terms(files: str | Pairs, model: str, as_json: bool, **limits: Any) -> None:
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
    from dragoman.analysis.alignment import read_raw_pairs
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
