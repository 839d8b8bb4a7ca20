"""The inputs of commands for runs that read recordings or pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dragoman.commands.layout import ReadingOptions
    from dragoman.data.config import DataConfig
    from dragoman.runs import Run


def reads_files(run: Run) -> bool:
    """Whether the inputs of a run are recordings or pictures."""
    from dragoman.data.formats.media import MediaFormat

    return isinstance(run.task.example_format(run.config), MediaFormat)


def check_media_options(run: Run, reading: ReadingOptions) -> None:
    """Raise an error for settings that have no effect on text, and for a data.media that is no folder or archive."""
    for name, given in (("skip_unreadable", reading.skip_unreadable), ("media", reading.media is not None)):
        if given and not reads_files(run):
            raise ConfigError(f'data.{name} is for recordings and pictures; {run.folder} has task = "{run.task.name}"')
    if reading.media is not None:
        from dragoman.data.media.files import check_media_folder

        check_media_folder(reading.media, "data.media")


def require_text_inputs(command: str, run: str) -> None:
    """Raise an error for a run that reads files, where a command needs texts."""
    from dragoman.runs import Run

    folder = Run(run)
    if reads_files(folder):
        raise ConfigError(f'{command} needs a run that reads text; {run} has task = "{folder.task.name}"')


def input_locations(run: Run, file: str | None, media: str | None) -> Iterable[str] | None:
    """The paths of all inputs, if `file` is a recording or picture, a folder, an archive or a manifest.

    None: `file` is a list of paths, one per line.
    """
    named = named_locations(run, file, media)
    return None if named is None else (path for _, path in named)


def named_locations(run: Run, file: str | None, media: str | None) -> Iterable[tuple[str, str]] | None:
    """(name, path) of all inputs, or None, as `input_locations`; a manifest has its own names."""
    from dragoman.data.media.files import AUDIO_SUFFIXES, IMAGE_SUFFIXES, is_media, list_media, media_kind
    from dragoman.data.readers.base import READERS

    if file is None or file == "-":
        if media is not None:
            raise ConfigError("data.media is for manifests, found standard input")
        return None
    if is_media(file):
        if media is not None:
            raise ConfigError(f"data.media is for manifests, found {file}")
        endings = AUDIO_SUFFIXES if run.config.tokenizer.source.kind == "audio" else IMAGE_SUFFIXES
        listed = list_media(file, endings)
        if listed.skipped:
            total = f"{listed.skipped + len(listed.paths):,}"
            click.echo(
                f"{file}: {listed.skipped:,} of {total} files skipped, no {media_kind(endings)} by name", err=True
            )
        return ((path, path) for path in listed.paths)
    if not READERS.of(file).table:
        if media is not None:
            raise ConfigError(f"data.media is for manifests (.tsv, .jsonl, …), found {file}")
        return None
    return _named(run.config.data, file, media)


def line_names(run: Run, file: str) -> Callable[[int], str]:
    """A function that names an input by its number: the line of a manifest or list, or "input N"."""
    from dragoman.data.media.files import is_media
    from dragoman.data.readers.base import READERS

    if is_media(file):
        return "input {}".format
    reader = READERS.of(file)
    header = run.config.data.header and reader.table and bool(reader.delimiter)
    return lambda number: f"{file}:{number + header}"


def _named(config: DataConfig, file: str, media: str | None) -> Iterator[tuple[str, str]]:
    """(name, path) for each row of a manifest: its source; other columns are ignored."""
    from dragoman.data.examples import Fault
    from dragoman.data.media.files import check_media_folder, is_relative, resolve_path
    from dragoman.data.readers.base import READERS, ReadOptions

    reader, base = READERS.of(file), media or config.media or str(Path(file).parent)
    columns = config.columns[:1]
    if reader.delimiter and not config.header and not all(map(str.isdigit, columns)):
        columns = ()  # a run trained on named fields reads the first column
    checked = bool(media) or not config.media
    for row in reader.sources(Path(file), ReadOptions(columns, config.header and bool(reader.delimiter))):
        if isinstance(row, Fault):
            raise DataError(str(row))
        if row.text and not checked and is_relative(row.text):
            check_media_folder(config.media, "data.media of the run (data.media=PATH names another)")
            checked = True
        yield row.text, resolve_path(base, row.text) if row.text else ""


def printable(name: str) -> str:
    """A file name as text: bytes that are not UTF-8 are replaced."""
    return name.encode("utf-8", "replace").decode()


def print_unreadable(faults: list[Any], consequence: str) -> None:
    """Print which inputs could not be read, and the consequence for the output."""
    for fault in faults[:3]:
        click.echo(f"left out: {fault}", err=True)
    if len(faults) > 3:
        click.echo(f"left out: (and {len(faults) - 3:,} more)", err=True)
    if faults:
        click.echo(f"{len(faults):,} input{'s' * (len(faults) > 1)} could not be read; {consequence}", err=True)
