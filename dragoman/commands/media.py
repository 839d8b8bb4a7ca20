"""The inputs of commands for runs that read recordings or pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dragoman.runs import Run


def reads_files(run: Run) -> bool:
    """Whether the inputs of a run are recordings or pictures."""
    from dragoman.data.formats.media import MediaFormat

    return isinstance(run.task.example_format(run.config), MediaFormat)


def check_media_options(run: Run, skip_unreadable: bool, media: str | None) -> None:
    """Raise an error for options that have no effect on text, and for a --media that is no folder or archive."""
    for name, given in (("--skip-unreadable", skip_unreadable), ("--media", media is not None)):
        if given and not reads_files(run):
            raise ConfigError(f'{name} is for recordings and pictures; {run.folder} has task = "{run.task.name}"')
    if media is not None:
        from dragoman.data.media.files import check_media_folder

        check_media_folder(media, "--media")


def require_text_inputs(command: str, run: str) -> None:
    """Raise an error for a run that reads files, where a command needs texts."""
    from dragoman.runs import Run

    opened = Run(run)
    if reads_files(opened):
        raise ConfigError(f'{command} needs a run that reads text; {run} has task = "{opened.task.name}"')


def input_locations(run: Run, file: str | None, media: str | None) -> Iterable[str] | None:
    """The paths of all inputs, if `file` is a recording or picture, a folder, an archive or a manifest.

    None: `file` is a list of paths, one per line.
    """
    found = named_locations(run, file, media)
    return None if found is None else (path for _, path in found)


def named_locations(run: Run, file: str | None, media: str | None) -> Iterable[tuple[str, str]] | None:
    """(name, path) of all inputs, or None, as `input_locations`; a manifest has its own names."""
    from dragoman.data.media.files import AUDIO_SUFFIXES, IMAGE_SUFFIXES, is_media, list_media, media_kind

    if file is None or file == "-":
        if media is not None:
            raise ConfigError("--media is for manifests, found standard input")
        return None
    if is_media(file):
        if media is not None:
            raise ConfigError(f"--media is for manifests, found {file}")
        endings = AUDIO_SUFFIXES if run.config.tokenizer.source.kind == "audio" else IMAGE_SUFFIXES
        found = list_media(file, endings)
        if found.skipped:
            total = f"{found.skipped + len(found.paths):,}"
            click.echo(
                f"{file}: {found.skipped:,} of {total} files skipped, no {media_kind(endings)} by name", err=True
            )
        return ((path, path) for path in found.paths)
    kind = manifest_kind(file)
    if kind not in (".tsv", ".jsonl"):
        if media is not None:
            raise ConfigError(f"--media is for manifests (.tsv, .jsonl), found {file}")
        return None
    return _named(run.config.data, file, kind, media)


def line_names(run: Run, file: str) -> Callable[[int], str]:
    """A function that names an input by its number: the line of a manifest or list, or "input N"."""
    from dragoman.data.media.files import is_media

    if is_media(file):
        return "input {}".format
    header = run.config.data.header and manifest_kind(file) == ".tsv"
    return lambda number: f"{file}:{number + header}"


def manifest_kind(file: str) -> str:
    """The suffix of a file name without that of its compression; ".jsonl" also for .ndjson."""
    from dragoman.data.readers.lines import is_jsonl

    return ".jsonl" if is_jsonl(file) else Path(file.lower().removesuffix(".gz").removesuffix(".zst")).suffix


def _named(config: Any, file: str, kind: str, media: str | None) -> Iterator[tuple[str, str]]:
    """(name, path) for each line of a manifest: its first column; other columns are ignored."""
    import json

    from dragoman.data.media.files import check_media_folder, is_relative, resolve_path
    from dragoman.data.readers.lines import read_lines

    column = config.columns[0] if config.columns else "source" if kind == ".jsonl" else "1"
    base = media or config.media or str(Path(file).parent)
    checked = bool(media) or not config.media
    number = None
    for line_number, line in enumerate(read_lines(file), 1):
        if kind == ".jsonl" and line.strip():
            try:
                name = json.loads(line)[column]
            except (ValueError, KeyError, TypeError):
                raise DataError(f"{file}:{line_number}: expected a JSON object with '{column}'") from None
            if not isinstance(name, str):
                raise DataError(f"{file}:{line_number}: found {name!r} as '{column}', expected the name of a file")
        else:
            cells = line.split("\t")
            if number is None:
                number = int(column) - 1 if column.isdigit() else cells.index(column) if column in cells else 0
            if config.header and line_number == 1:
                continue
            if line.strip() and number >= len(cells):
                raise DataError(f"{file}:{line_number}: found {len(cells)} columns, expected at least {number + 1}")
            name = cells[number] if line.strip() else ""
        if name and not checked and is_relative(name):
            check_media_folder(config.media, "data.media of the run (--media names another)")
            checked = True
        yield name, resolve_path(base, name) if name else ""


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
