"""`dragoman align` for runs that read recordings or images of lines: when or where each word occurs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dragoman.commands.labels import read_examples, refuse_options
from dragoman.commands.layout import ReadingOptions
from dragoman.commands.media import line_names, named_locations, print_unreadable, printable
from dragoman.commands.printing import as_utf8
from dragoman.commands.progress import progress_bar
from dragoman.errors import DataError

if TYPE_CHECKING:
    from dragoman.inference.predictor import Predictor
    from dragoman.runs import Run

WINDOW = 256  # files whose features are in memory together
ALLOWED = {"run", "file", "predicting", "media", "skip_unreadable", "batch_size", "as_json", "device"}


def align_files(
    run: Run,
    file: str | None,
    predicting: bool,
    media: str | None,
    skip_unreadable: bool,
    batch_size: int,
    as_json: bool,
    device: str,
) -> None:
    """Print one line per word, or with `as_json` one object per file."""
    from dragoman.analysis.ctc_alignment import require_transcriber
    from dragoman.inference.load import load_predictor

    refuse_options(run, ALLOWED, 'goes with texts; {run} has task = "{task}"')
    predictor = load_predictor(run.folder, device)
    require_transcriber(predictor)
    inputs = listed_inputs(run, file, media) if predicting else manifest_inputs(run, file, media)
    unreadable: list[Any] = []
    too_long: list[str] = []
    unknown: list[str] = []
    as_utf8()
    watched = sys.stderr.isatty() and not sys.stdout.isatty()
    with progress_bar("files", len(inputs)) if watched else nullcontext(lambda done: None) as done:
        for first in range(0, len(inputs), WINDOW):
            window = inputs[first : first + WINDOW]
            left_out = unreadable if skip_unreadable else None
            for file_input, placed in place_words(predictor, window, predicting, batch_size, left_out):
                if not placed.fits:
                    too_long.append(file_input.name)
                else:
                    unknown += [word for word, place in placed.words if place is None]
                name = printable(file_input.name)
                lines = [placed.as_json_line(name)] if as_json else ["\t".join(row) for row in placed.rows(name)]
                sys.stdout.write("".join(f"{line}\n" for line in lines))
                done(1)
    sys.stdout.flush()
    print_first("too few frames for the text, so its words have no positions", too_long)
    words = f"{len(unknown):,} word{'s' * (len(unknown) > 1)}"
    print_first(f"no position for {words} outside the vocabulary", list(dict.fromkeys(unknown)))
    print_unreadable(unreadable, "nothing is written for them")


class Input(NamedTuple):
    """A file with its text."""

    name: str
    line: str  # where the file is named, for errors
    path: str
    text: str = ""


def manifest_inputs(run: Run, file: str | None, media: str | None) -> list[Input]:
    """The files of a manifest and their texts."""
    from dragoman.data.media.files import is_media

    if file is None or is_media(file):
        found = "nothing" if file is None else file
        raise DataError(f"found {found}, expected a manifest of files and texts; or add --predict")
    data = ReadingOptions(media=media).applied(run.config.data, file)
    examples = read_examples(data, file, run.task.example_format(run.config), "pair", True, "align")
    return [Input(one.source, one.location, one.model_input, one.references[0]) for one in examples]


def listed_inputs(run: Run, file: str | None, media: str | None) -> list[Input]:
    """The files that FILE stands for: itself, or those in a folder, an archive, a manifest or a list."""
    from dragoman.data.readers.lines import read_lines

    named = named_locations(run, file, media)
    names = ((name, name) for name in read_lines(file)) if named is None else named
    line = "input {}".format if file in (None, "-") else line_names(run, str(file))
    inputs = [Input(name, line(number), path) for number, (name, path) in enumerate(names, 1) if path.strip()]
    if not inputs:
        raise DataError(f"{file or 'standard input'}: found no name of a file, expected one or more")
    return inputs


def place_words(
    predictor: Predictor, inputs: Sequence[Input], predicting: bool, batch_size: int, left_out: list[Any] | None
) -> list[tuple[Input, Any]]:
    """Every input with the positions of its words; an unreadable file is an error, or added to `left_out`."""
    from dragoman.analysis.ctc_alignment import force_align, read_media, transcribe
    from dragoman.data.examples import Fault

    readable = []
    for one, features in zip(inputs, read_media(predictor, [one.path for one in inputs]), strict=True):
        if not isinstance(features, Fault):
            readable.append((one, features))
        elif left_out is None:
            raise DataError(f"{one.line}: {features}; leave such files out with --skip-unreadable")
        else:
            left_out.append(f"{one.line}: {features}")
    files, opened = [one for one, _ in readable], [features for _, features in readable]
    texts = [one.text for one in files]
    if predicting:
        texts = transcribe(predictor, [one.path for one in files], opened, batch_size)
    return list(zip(files, force_align(predictor, opened, texts, batch_size), strict=True))


def print_first(message: str, names: list[str]) -> None:
    """Print a message with the first three names."""
    if names:
        more = f" (and {len(names) - 3:,} more)" if len(names) > 3 else ""
        click.echo(f"{message}: {', '.join(map(printable, names[:3]))}{more}", err=True)
