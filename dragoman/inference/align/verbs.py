"""Align the words of pairs: by a run, by two runs of opposite directions, or by a model that learns from the pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.base import DataError, is_watched, progress
from dragoman.classical import PRIOR, WordAlignerModel
from dragoman.data import Fault, Pairs, ReadingOptions, media_inputs
from dragoman.data.media import is_media
from dragoman.data.readers import read_lines
from dragoman.data.tokenizers import check_tag
from dragoman.decoding.constraints import ConstrainedInput
from dragoman.inference.align.alignment import Aligner, FilePairs, Pair, read_raw_pairs
from dragoman.inference.align.alignments import AlignOptions, ForcedAlignment, TermOptions, WordAlignment
from dragoman.inference.align.ctc_alignment import ForceAlignWork, MediaFeatures, require_transcriber, transcribe
from dragoman.inference.align.word_alignment import WINDOW, RawAligner, Term, TokenAlignWork, extract_terms
from dragoman.inference.evaluation import read_examples
from dragoman.inference.inputs import StreamOptions, Warn
from dragoman.inference.lines import unreadable_lines
from dragoman.inference.load import load_predictor, require_texts
from dragoman.inference.opened_inputs import check_reading, open_inputs
from dragoman.inference.pipeline import stream_outputs
from dragoman.inference.predictor import Predictor
from dragoman.inference.target_scores import QUIET, pair_inputs
from dragoman.scoring import read_alignments
from dragoman.training import Display

FILES = 256  # whose features are in memory together
OF_ALIGNERS = {"predict", "threshold", "combine", "batch_size", "tag"}
OF_FILES = {"predict", "media", "skip_unreadable", "batch_size"}
Alignments = Iterator[WordAlignment | ForcedAlignment]
Data = str | Pairs | Iterable[Any] | None


def align(
    run: str | Path | Predictor | None,
    pairs: Data | Path,
    options: AlignOptions = AlignOptions(),  # noqa: B008  (frozen)
    *,
    device: str = "auto",
    stream: StreamOptions | None = None,
    weights: bool = True,
    log: Callable[[str], None] = lambda line: None,
) -> Alignments:
    """The links between the words of every pair, in order; of a run that transcribes, the places of words in files.

    `pairs` are a file, or pairs of source and target in memory; with `options.predict` sources alone, where None is
    standard input. Without a run, `options.model` learns from the pairs, and is faster without `weights` of the links.
    `log` gets lines about the attention that was chosen, and about words and files without places.
    """
    pairs = str(pairs) if isinstance(pairs, Path) else pairs
    if options.model is not None:
        return align_raw(pairs, options, weights)
    if run is None:
        raise DataError("nothing to align with: name a run, or choose a model of the pairs with --model hmm")
    predictor = run if isinstance(run, Predictor) else load_predictor(run, device)
    stream = stream or StreamOptions()
    check_reading(predictor.run, ReadingOptions(media=options.media, skip_unreadable=options.skip_unreadable))
    if predictor.reads_files:
        return force_align(predictor, pairs, options, stream, log)
    if isinstance(predictor.scorer, WordAlignerModel):
        reason = f"reads attention; {predictor.run.folder} is a word aligner of both directions"
        options.refuse_all_but(OF_ALIGNERS, reason)
        if options.tag is not None:
            check_tag(options.tag, predictor.tags)
        combine = options.combine or "grow-diag-final-and"
        work = TokenAlignWork(predictor, combine, options.threshold, options.tag)
        texts = text_pairs(predictor, pairs, options, stream.warn)
        aligned = stream_outputs(work, pair_inputs(texts), replace(quiet(stream, options), window=WINDOW))
    else:
        first = int(options.gold_from) if options.gold_from else None
        gold = None if options.gold is None else read_alignments(read_lines(options.gold), options.gold, first)
        if options.combine is not None and options.reverse is None:
            raise DataError("--combine needs --reverse")
        if options.reverse is not None:
            require_texts("align", options.reverse)
        backward = None if options.reverse is None else load_predictor(options.reverse, device)
        how: Any = {"threshold": options.threshold, "tag": options.tag, "batch_size": options.batch_size}
        aligner = Aligner(predictor, backward, symmetrization=options.combine or "grow-diag", **how)
        texts = text_pairs(predictor, pairs, options, stream.warn)
        aligner = aligner.choose_view(texts, options.layer, options.head, options.shift, gold, log)
        aligned = aligner(texts, quiet(stream, options))
    if not options.predict:
        return aligned
    return (replace(links, output=target) for links, (_, target) in zip(aligned, texts, strict=True))


def quiet(stream: StreamOptions, options: AlignOptions) -> StreamOptions:
    """Without what the prediction of the outputs has told of the sources."""
    if not options.predict:
        return stream
    return replace(stream, on_warning=QUIET.on_warning, on_unknown=QUIET.on_unknown)


def text_pairs(predictor: Predictor, pairs: Data, options: AlignOptions, warn: Warn) -> list[Pair]:
    """The pairs of a file or of memory, or with `predict` sources with the run's outputs, each on one line."""
    if options.predict:
        if isinstance(pairs, Pairs):
            raise DataError(
                "--predict reads sources alone, from FILE or standard input: leave out --source and --target"
            )
        sources = list(open_inputs(predictor.run, Path(pairs) if isinstance(pairs, str) else pairs, warn=warn))
        outputs = predictor.stream(sources, tag=options.tag)
        return [(item.text, " ".join(output.text.splitlines())) for item, output in zip(sources, outputs, strict=True)]
    if pairs is None:
        raise DataError(
            "name either FILE or both --source and --target, or add --predict to align what the run outputs"
        )
    if isinstance(pairs, str | Pairs):
        return list(FilePairs(predictor.config.data, pairs))
    return list(pairs)


def align_raw(pairs: Data, options: AlignOptions, weights: bool) -> Iterator[WordAlignment]:
    """Learn an alignment model from the pairs themselves, and align them."""
    own = raw_pairs(pairs)
    more = () if options.learn_from is None else read_raw_pairs(options.learn_from)
    prior = PRIOR if options.prior is None else options.prior
    with Display(quiet=not is_watched()) as display:
        aligner = RawAligner(str(options.model), options.iterations or 5, chain(own, more), display.preparing, prior)
    return aligner(own, options.combine or "grow-diag-final-and", options.threshold, weights)


def raw_pairs(pairs: Data | Path) -> Iterable[Pair]:
    """Pairs that can be read again and again."""
    if pairs is None:
        raise DataError("name either FILE or both --source and --target")
    pairs = str(pairs) if isinstance(pairs, Path) else pairs
    if isinstance(pairs, str | Pairs):
        return read_raw_pairs(pairs)
    rows: list[Any] = list(pairs)
    return rows


def terms(pairs: Data | Path, options: TermOptions = TermOptions()) -> list[Term]:  # noqa: B008  (frozen)
    """The words and phrases that are mostly translated in one way, most frequent first."""
    own = raw_pairs(pairs)
    with Display(quiet=not is_watched()) as display:
        aligner = RawAligner(options.model, 5, own, display.preparing)
    limits = {name: getattr(options, name) for name in ("max_words", "min_count", "min_share")}
    with progress("pairs", aligner.count) as done:
        return extract_terms(aligner(own, weights=False), done=done, **limits)


# --- runs that read recordings or images of lines: when or where each word occurs


class FileInput(NamedTuple):
    """A file with its text."""

    name: str
    place: str  # where the file is named, for errors
    path: str
    text: str | None  # None: the run writes it


def force_align(
    predictor: Predictor, pairs: Data, options: AlignOptions, stream: StreamOptions, log: Callable[[str], None]
) -> Iterator[ForcedAlignment]:
    """The places of the words of every text in its file; with `predict` of what the run writes for files alone."""
    folder, task = predictor.run.folder, predictor.run.task.name
    options.refuse_all_but(OF_FILES, f'goes with texts; {folder} has task = "{task}"')
    require_transcriber(predictor)
    files = file_inputs(predictor, pairs, options, stream)
    unreadable: dict[str, Fault] = {}  # by place

    def unread(fault: Fault) -> None:
        if not options.skip_unreadable:
            raise DataError(f"{fault}; leave such files out with --skip-unreadable")
        unreadable[fault.location] = fault
        if stream.on_unreadable is not None:
            stream.on_unreadable(fault)

    def texts(paths: Sequence[str], files: Sequence[MediaFeatures]) -> list[str]:
        return transcribe(predictor, paths, files, options.batch_size)

    work = ForceAlignWork(predictor, options.batch_size, texts if options.predict else None)
    inputs = (ConstrainedInput(file.path, target=file.text) for file in files)
    named = replace(
        stream,
        window=min(FILES, stream.window),
        on_unreadable=unread,
        input_name=lambda number: files[number - 1].place,
    )
    aligned = zip(files, stream_outputs(work, inputs, named), strict=True)
    readable = (replace(own, source=file.name) for file, own in aligned if file.place not in unreadable)
    return reported(readable, unreadable, log)


def file_inputs(predictor: Predictor, pairs: Data, options: AlignOptions, stream: StreamOptions) -> list[FileInput]:
    """The files with their texts in a manifest or in memory, or with `predict` the files that a path stands for."""
    run, reading = predictor.run, ReadingOptions(media=options.media)
    path, data = pairs if isinstance(pairs, str) else None, run.config.data
    if isinstance(pairs, Pairs):
        raise DataError("found two files of texts, expected a manifest of files and texts")
    if pairs is not None and path is None:
        rows = enumerate(((row, None) for row in pairs) if options.predict else pairs, 1)
        return [FileInput(name, f"input {number}", name, text) for number, (name, text) in rows]
    if options.predict:
        source, file = run.config.tokenizer.source, None if path is None else Path(path)
        listed = enumerate(media_inputs(file, data, source, reading, stream.warn), 1)
        found = [
            FileInput(one.name, one.place or f"input {number}", one.path, None)
            for number, one in listed
            if one.path.strip()
        ]
        if not found:
            raise DataError(f"{path or 'standard input'}: found no name of a file, expected one or more")
        return found
    if path is None or is_media(path):
        raise DataError(f"found {path or 'nothing'}, expected a manifest of files and texts; or add --predict")
    examples = read_examples(run, path, True, reading.applied(data, path, stream.warn), stream.warn)
    if not examples:
        raise DataError(f"{path}: nothing to align: no pair was read")
    return [FileInput(one.source, one.location, one.model_input, one.references[0]) for one in examples]


def reported(
    alignments: Iterator[ForcedAlignment], unreadable: Mapping[str, Fault], log: Callable[[str], None]
) -> Iterator[ForcedAlignment]:
    """The alignments; at the end `log` gets which files and words have no places, and why."""
    too_long, empty, unknown = list[str](), list[str](), dict[str, int]()
    for aligned in alignments:
        if not aligned.fits:
            too_long.append(aligned.source)
        elif not aligned.words:
            empty.append(aligned.source)
        else:
            for word in (word for word, place in aligned.words if place is None):
                unknown[word] = unknown.get(word, 0) + 1
        yield aligned
    words = f"{sum(unknown.values()):,} word{'s' * (sum(unknown.values()) > 1)}"
    for message, names in (
        ("too few frames for the text, so its words have no positions", too_long),
        ("the text is empty, so there is no word to place", empty),
        (f"no position for {words} outside the vocabulary", [*unknown]),
    ):
        if names:
            more = f" (and {len(names) - 3:,} more)" if len(names) > 3 else ""
            log(f"{message}: {', '.join(names[:3])}{more}")
    for line in unreadable_lines([*unreadable.values()], "nothing is written for them"):
        log(line)
