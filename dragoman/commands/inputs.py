"""The files that commands take."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from dragoman.base import DataError
from dragoman.data import Pairs

Command = Callable[..., Any]
FILES_NEEDED = "name either FILE or both --source and --target"


def pair_files(
    target: str = "Target", reason: str = FILES_NEEDED, among_words: bool = False, required: bool = False
) -> Callable[[Command], Command]:
    """Adds FILE, --source and --target to a command, which gets them as `files`: a path, two paths or None.

    With `among_words` FILE is one of the words of a `SettingsCommand`.
    """

    def add(function: Command) -> Command:
        @functools.wraps(function)
        def gathered(file: str | None, source: str | None, target: str | None, **given: Any) -> Any:
            if (file is not None and source is not None) or (source is None) != (target is None):
                raise DataError(reason)
            files = file if source is None or target is None else Pairs(source, target)
            if required and files is None:
                raise DataError(FILES_NEEDED)
            return function(files=files, **given)

        gathered = click.option("--target", help=f"{target} lines, one for each source line.")(gathered)
        gathered = click.option("--source", help="Source lines of a pair of parallel files.")(gathered)
        return gathered if among_words else click.argument("file", required=False)(gathered)

    return add


def what_to_train(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the arguments that name data or a configuration to a command, which gets them as `request`."""

    @functools.wraps(function)
    def gathered(what: Any, source: Any, target: Any, overrides: Any, **given: Any) -> None:
        if given.get("installation"):
            if what or source or target or overrides:
                raise click.UsageError("--installation looks at no data: leave out files, runs and settings")
            function(request=None, **given)
            return
        from dragoman.auto import read_request

        function(request=read_request(what, source, target, overrides), **given)

    gathered = click.argument("overrides", nargs=-1, metavar="[PLACE=VALUE]...")(gathered)
    gathered = click.argument("what", required=False, metavar="[FILE|CONFIG|RUN]")(gathered)
    gathered = click.option("--target", help="Target lines, one for each source line.")(gathered)
    return click.option("--source", help="Source lines of a pair of parallel files.")(gathered)
