"""What `predict` and `evaluate` need for runs that read recordings or pictures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from dragoman.errors import ConfigError, DataError


def reads_files(run: Any) -> bool:
    """Whether the inputs of a run are files."""
    from dragoman.data.formats.media import MediaFormat

    return isinstance(run.task.example_format(run.config), MediaFormat)


def files_only(run: Any, skip_unreadable: bool, media: str | None) -> None:
    """Refuse options that mean nothing where inputs are text, and a place of files that is none."""
    for name, given in (("--skip-unreadable", skip_unreadable), ("--media", media is not None)):
        if given and not reads_files(run):
            raise ConfigError(f'{name} is for recordings and pictures; {run.folder} has task = "{run.task.name}"')
    if media is not None:
        from dragoman.data.media.files import check_media_folder

        check_media_folder(media, "--media")


def texts_only(command: str, run: str) -> None:
    """Refuse a run that reads files where a command reads texts."""
    from dragoman.runs import Run

    opened = Run(run)
    if reads_files(opened):
        raise ConfigError(f'{command} needs a run that reads text; {run} has task = "{opened.task.name}"')


def locations(run: Any, file: str | None, media: str | None) -> Iterable[str] | None:
    """The inputs that a name stands for if it is no list but a file, a folder, an archive or a manifest; else None."""
    found = named_locations(run, file, media)
    return None if found is None else (place for _, place in found)


def named_locations(run: Any, file: str | None, media: str | None) -> Iterable[tuple[str, str]] | None:
    """The same with their names, which in a manifest are as it has them."""
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
                f"{file}: {found.skipped:,} of {total} files passed over, no {media_kind(endings)} by name", err=True
            )
        return ((place, place) for place in found.paths)
    kind = manifest_kind(file)
    if kind not in (".tsv", ".jsonl"):
        if media is not None:
            raise ConfigError(f"--media is for manifests (.tsv, .jsonl), found {file}")
        return None
    return _named(run.config.data, file, kind, media)


def caller(run: Any, file: str) -> Callable[[int], str]:
    """Where the input with a number stands: in a line of a manifest or list, or by its own name alone."""
    from dragoman.data.media.files import is_media

    if is_media(file):
        return "input {}".format
    header = run.config.data.header and manifest_kind(file) == ".tsv"
    return lambda number: f"{file}:{number + header}"


def manifest_kind(file: str) -> str:
    """The ending of a file's name without that of its compression; ".jsonl" for JSON lines of either name."""
    from dragoman.data.readers.lines import is_jsonl

    return ".jsonl" if is_jsonl(file) else Path(file.lower().removesuffix(".gz").removesuffix(".zst")).suffix


def _named(config: Any, file: str, kind: str, media: str | None) -> Iterator[tuple[str, str]]:
    """The names in the first of a manifest's columns and their locations; texts after it are not looked at."""
    import json

    from dragoman.data.media.files import check_media_folder, is_relative, resolve_path
    from dragoman.data.readers.lines import read_lines

    column = config.columns[0] if config.columns else "source" if kind == ".jsonl" else "1"
    base = media or config.media or str(Path(file).parent)
    looked_at = bool(media) or not config.media
    number = None
    for place, line in enumerate(read_lines(file), 1):
        if kind == ".jsonl" and line.strip():
            try:
                name = json.loads(line)[column]
            except (ValueError, KeyError, TypeError):
                raise DataError(f"{file}:{place}: expected a JSON object with '{column}'") from None
            if not isinstance(name, str):
                raise DataError(f"{file}:{place}: found {name!r} as '{column}', expected the name of a file")
        else:
            cells = line.split("\t")
            if number is None:
                number = int(column) - 1 if column.isdigit() else cells.index(column) if column in cells else 0
            if config.header and place == 1:
                continue
            if line.strip() and number >= len(cells):
                raise DataError(f"{file}:{place}: found {len(cells)} columns, expected at least {number + 1}")
            name = cells[number] if line.strip() else ""
        if name and not looked_at and is_relative(name):
            check_media_folder(config.media, "data.media of the run (--media names another)")
            looked_at = True
        yield name, resolve_path(base, name) if name else ""


def noted(lines: Iterable[str], beside: deque[str]) -> Iterator[str]:
    """The lines as they are, each added to what is to be told beside its answer."""
    for line in lines:
        beside.append(shown(line))
        yield line


def shown(name: str) -> str:
    """A file's name as text can hold it: some have bytes that are none."""
    return name.encode("utf-8", "replace").decode()


def tell_left_out(faults: list[Any], what: str) -> None:
    """Say which inputs were left out, after all others were answered, and what became of them."""
    for fault in faults[:3]:
        click.echo(f"left out: {fault}", err=True)
    if len(faults) > 3:
        click.echo(f"left out: (and {len(faults) - 3:,} more)", err=True)
    if faults:
        click.echo(f"{len(faults):,} input{'s' * (len(faults) > 1)} could not be read; {what}", err=True)
