"""`dragoman align` for runs that read recordings or lines: where each word stands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import click

from dragoman.commands.labels import all_examples, refuse_others
from dragoman.commands.layout import reading_of
from dragoman.commands.media import caller, named_locations, shown, tell_left_out
from dragoman.commands.printing import as_utf8
from dragoman.commands.progress import progress_bar
from dragoman.errors import DataError

TOGETHER = 256  # files whose features are held at a time
ALLOWED = {"run", "file", "predicting", "media", "skip_unreadable", "batch_size", "as_json", "device"}


def align_files(
    run: Any,
    file: str | None,
    predicting: bool,
    media: str | None,
    skip_unreadable: bool,
    batch_size: int,
    as_json: bool,
    device: str,
) -> None:
    """A line a word, or with --json an object a file."""
    from dragoman.analysis.ctc_alignment import require_transcriber
    from dragoman.inference.load import load_predictor

    refuse_others(str(run.folder), run.task.name, ALLOWED, 'goes with texts; {run} has task = "{task}"')
    predictor = load_predictor(run.folder, device)
    require_transcriber(predictor)
    inputs = named_places(run, file, media) if predicting else manifest(run, file, media)
    left_out: list[Any] = []
    without_room: list[str] = []
    unknown: list[str] = []
    as_utf8()
    watched = sys.stderr.isatty() and not sys.stdout.isatty()
    with progress_bar("files", len(inputs)) if watched else nullcontext(lambda done: None) as done:
        for first in range(0, len(inputs), TOGETHER):
            some = inputs[first : first + TOGETHER]
            for one, found in places_of(predictor, some, predicting, batch_size, left_out if skip_unreadable else None):
                if not found.fits:
                    without_room.append(one.name)
                else:
                    unknown += [word for word, place in found.words if place is None]
                name = shown(one.name)
                lines = [found.as_json_line(name)] if as_json else ["\t".join(row) for row in found.rows(name)]
                sys.stdout.write("".join(f"{line}\n" for line in lines))
                done(1)
    sys.stdout.flush()
    tell_some("no room for the text, so no places", without_room)
    words = f"{len(unknown):,} word{'s' * (len(unknown) > 1)}"
    tell_some(f"no place for {words} that the vocabulary does not know", list(dict.fromkeys(unknown)))
    tell_left_out(left_out, "nothing is written for them")


class Input(NamedTuple):
    """A file, where it is named, and what is said or written there."""

    name: str
    where: str
    place: str
    text: str = ""


def manifest(run: Any, file: str | None, media: str | None) -> list[Input]:
    """The files of a manifest and their texts."""
    from dragoman.data.media.files import is_media

    if file is None or is_media(file):
        found = "nothing" if file is None else file
        raise DataError(f"found {found}, expected a manifest of files and texts; or add --predict")
    reading = reading_of(run.config.data, file, media=media)
    examples = all_examples(reading, file, run.task.example_format(run.config), "pair", True, "align")
    return [Input(one.source, one.location, one.model_input, one.references[0]) for one in examples]


def named_places(run: Any, file: str | None, media: str | None) -> list[Input]:
    """All that a file, a folder, an archive, a manifest or a list stands for."""
    from dragoman.data.readers.lines import read_lines

    found = named_locations(run, file, media)
    names = ((name, name) for name in read_lines(file)) if found is None else found
    where = "input {}".format if file in (None, "-") else caller(run, str(file))
    inputs = [Input(name, where(number), place) for number, (name, place) in enumerate(names, 1) if place.strip()]
    if not inputs:
        raise DataError(f"{file or 'standard input'}: found no name of a file, expected one or more")
    return inputs


def places_of(
    predictor: Any, inputs: Sequence[Input], predicting: bool, batch_size: int, left_out: list[Any] | None
) -> list[tuple[Input, Any]]:
    """Every input with its places; what cannot be read is an error, or left out."""
    from dragoman.analysis.ctc_alignment import force_align, read_media, transcribe
    from dragoman.data.examples import Fault

    opened = list(zip(inputs, read_media(predictor, [one.place for one in inputs]), strict=True))
    kept = []
    for one, found in opened:
        if not isinstance(found, Fault):
            kept.append((one, found))
        elif left_out is None:
            raise DataError(f"{one.where}: {found}; leave such files out with --skip-unreadable")
        else:
            left_out.append(f"{one.where}: {found}")
    texts = [one.text for one, _ in kept]
    if predicting:
        texts = transcribe(predictor, [one.place for one, _ in kept], [found for _, found in kept], batch_size)
    answers = force_align(predictor, [found for _, found in kept], texts, batch_size)
    return list(zip((one for one, _ in kept), answers, strict=True))


def tell_some(what: str, names: list[str]) -> None:
    """Say something of the first few."""
    if names:
        more = f" (and {len(names) - 3:,} more)" if len(names) > 3 else ""
        click.echo(f"{what}: {', '.join(map(shown, names[:3]))}{more}", err=True)
