"""`dragoman align` for runs that read recordings or lines: where each word stands."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import click

from dragoman.commands.direct import all_examples, refuse_others
from dragoman.commands.media import locations
from dragoman.commands.printing import as_utf8
from dragoman.commands.progress import progress_bar
from dragoman.errors import DataError


def align_files(
    run: Any, file: str | None, predicting: bool, media: str | None, batch_size: int, as_json: bool, device: str
) -> None:
    """A line a word, or with --json an object a file."""
    from dragoman.inspection.placing import placed, transcriber_of
    from dragoman.predictor import load

    allowed = {"run", "file", "predicting", "media", "batch_size", "as_json", "device"}
    refuse_others(str(run.folder), run.task.name, allowed, 'goes with texts; {run} has task = "{task}"')
    if file is None and not predicting:
        raise DataError("name a manifest, or add --predict to place what the run writes")
    predictor = load(run.folder, device)
    transcriber_of(predictor)
    inputs = named_places(run, file, media) if predicting else manifest(run, file, media)
    without: list[str] = []
    as_utf8()
    watched = sys.stderr.isatty() and not sys.stdout.isatty()
    with progress_bar("files", len(inputs)) if watched else nullcontext(lambda done: None) as done:
        for first in range(0, len(inputs), batch_size):
            some = inputs[first : first + batch_size]
            if predicting:
                some = [one._replace(text=text) for one, text in zip(some, written(predictor, some), strict=True)]
            found = placed(predictor, [(one.place, one.text) for one in some], batch_size)
            for named, one in zip(some, found, strict=True):
                one = replace(one, source=named.name)
                if not one.found:
                    without.append(named.name)
                lines = [one.as_line()] if as_json else ["\t".join(row) for row in one.rows()]
                sys.stdout.write("".join(f"{line}\n" for line in lines))
            done(len(some))
    sys.stdout.flush()
    if without:
        several = f" (and {len(without) - 3:,} more)" if len(without) > 3 else ""
        click.echo(f"no room for the text, so no places: {', '.join(without[:3])}{several}", err=True)


class Input(NamedTuple):
    """A file and what is said or written there."""

    name: str
    place: str
    text: str = ""


def manifest(run: Any, file: str | None, media: str | None) -> list[Input]:
    """The files of a manifest and their texts."""
    reading = replace(run.config.data, media=media) if media else run.config.data
    examples = all_examples(reading, file, run.task.shape_of(run.config), "pair")
    return [Input(one.source, one.tagged, one.references[0]) for one in examples]


def named_places(run: Any, file: str | None, media: str | None) -> list[Input]:
    """All that a file, a folder, an archive, a manifest or a list stands for."""
    from dragoman.data.lines import read_lines

    found = locations(run, file, media)
    return [Input(place, place) for place in (read_lines(file) if found is None else found) if place]


def written(predictor: Any, inputs: list[Input]) -> list[str]:
    """What the run writes for each, on one line."""
    from dragoman.data.corpus import faults_told

    left_out: list[Any] = []
    predictor.unreadable = left_out.append
    outputs = predictor.predict([one.place for one in inputs], batch_size=len(inputs))
    if left_out:
        raise DataError(faults_told(left_out, len(left_out)))
    return [" ".join(one.text.splitlines()) for one in outputs]
