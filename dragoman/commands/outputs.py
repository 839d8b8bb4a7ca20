"""One rule for the files that commands write: never an input of the command, never a part of a run."""

from __future__ import annotations

import functools
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from dragoman.commands.settings import Settings
from dragoman.errors import DataError
from dragoman.files import check_writable, run_of_part, same_file

# The arguments that name a file to write, in every command that has them.
OUTPUTS = ("out", "output", "plot", "beam_trace", "page", "html", "report", "rejects")
PLAIN = ("output", "beam_trace", "rejects")  # others are pictures and pages, which create their folder
# A command may write its own part of a run.
OWN_PARTS = {"shortlist": "shortlist.safetensors"}
FOLDER_OUTPUTS = ("translate",)  # --output may be a folder; the command checks the files in it


def checked_outputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command that refuses bad outputs before it does any work."""

    @functools.wraps(function)
    def checked(*arguments: Any, **given: Any) -> Any:
        check_outputs(click.get_current_context())
        return function(*arguments, **given)

    return checked


def check_outputs(context: click.Context) -> None:
    """Raise DataError if a file that the command would write is one of its inputs or a part of a run."""
    options = {parameter.name: max(parameter.opts, key=len) for parameter in context.command.params}
    given = {name: (options.get(name, name), value) for name, value in context.params.items()}
    if isinstance(settings := context.params.get("settings"), Settings):
        given |= {place: (spelled, settings.value(place)) for place, spelled in settings.spelled.items()}
    inputs = [path for name, (_, value) in given.items() if name not in OUTPUTS for path in existing_paths(value)]
    for name, (option, path) in given.items():
        if name not in OUTPUTS or not isinstance(path, str) or path == "-":
            continue
        if used := next((other for other in inputs if same_file(other, path)), None):
            raise DataError(f"{option} {path}: this would overwrite the input {used}; name another file")
        if (run := run_of_part(Path(path))) and OWN_PARTS.get(context.command.name or "") != Path(path).name:
            raise DataError(f"{option} {path}: this is a part of the run {run}; name a file outside it")
        if name in PLAIN and context.command.name not in FOLDER_OUTPUTS:
            check_writable(path)
    check_standard_output(inputs)


def check_standard_output(inputs: list[str]) -> None:
    """Refuse `dragoman predict RUN FILE > FILE`: the shell has emptied FILE, and with >> output would be read again."""
    try:
        written = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # closed, or not a file
        return
    for path in inputs:
        if Path(path).is_file() and os.path.samestat(written, Path(path).stat()):
            raise DataError(f"{path}: standard output goes to this input; send it to another file")


def existing_paths(value: Any) -> Iterator[str]:
    """The paths that an argument names; for a run folder also its data files."""
    for path in value if isinstance(value, tuple | list) else (value,):
        try:
            if not isinstance(path, str) or not path or not Path(path).exists():
                continue
        except (OSError, ValueError):  # a text that can be no path
            continue
        yield path
        if (Path(path) / "config.toml").is_file():
            yield from data_files(Path(path) / "config.toml")


def data_files(config: Path) -> Iterator[str]:
    """The data files that a configuration names."""
    try:
        data = tomllib.loads(config.read_text(encoding="utf-8")).get("data", {})
    except (OSError, ValueError):  # the command says what is wrong with it
        return
    for part in ("train", "valid") if isinstance(data, dict) else ():
        entries = data.get(part)
        for entry in entries if isinstance(entries, list) else [entries]:
            paths = entry.values() if isinstance(entry, dict) else [entry]
            yield from (path for path in paths if isinstance(path, str))
