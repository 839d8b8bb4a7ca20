"""Arguments that name a file of examples and how to read it: as the run read its own data, unless options differ."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.config.settings import setting
from dragoman.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dragoman.data.config import DataConfig
    from dragoman.data.examples import Pairs

Command = Callable[..., Any]


def pair_files(
    target: str = "Target",
    reason: str = "name either FILE or both --source and --target",
    among_words: bool = False,
) -> Callable[[Command], Command]:
    """Adds FILE, --source and --target to a command, which gets them as `files`: a path, two paths or None.

    With `among_words` FILE is one of the words of a `SettingsCommand`.
    """

    def add(function: Command) -> Command:
        @functools.wraps(function)
        def gathered(file: str | None, source: str | None, target: str | None, **given: Any) -> Any:
            if (file is not None and source is not None) or (source is None) != (target is None):
                raise DataError(reason)
            if source is None or target is None:
                return function(files=file, **given)
            from dragoman.data.examples import Pairs

            return function(files=Pairs(source, target), **given)

        gathered = click.option("--target", help=f"{target} lines, one for each source line.")(gathered)
        gathered = click.option("--source", help="Source lines of a pair of parallel files.")(gathered)
        return gathered if among_words else click.argument("file", required=False)(gathered)

    return add


def check_pair_files(files: str | Pairs | None) -> str | Pairs:
    """The files of a command that needs some."""
    if files is None:
        raise DataError("name either FILE or both --source and --target")
    return files


@dataclass(frozen=True)
class ReadingOptions:
    """How a command reads a file of examples; None: as the run read its own data."""

    columns: str | None = setting(None, help="columns of FILE, by number or name, as in 1,3")
    header: bool | None = setting(None, help="whether the first line of FILE names its columns")
    media: str | None = setting(None, help="folder or archive with the files that a manifest names")
    skip_unreadable: bool = setting(False, help="leave out and count recordings or pictures that cannot be read")

    def applied(self, data: DataConfig, files: str | Pairs) -> DataConfig:
        """The run's data settings changed by these options; a header is not expected where there can be none."""
        from dragoman.data.examples import Pairs
        from dragoman.data.readers.base import READERS
        from dragoman.data.readers.conll import sentence_layout

        parallel = isinstance(files, Pairs)
        if parallel and (self.columns is not None or self.header is not None):
            name = "columns" if self.columns is not None else "header"
            raise ConfigError(f"data.{name} goes with FILE, not with two files")
        names = data.columns if self.columns is None else tuple(name.strip() for name in self.columns.split(","))
        if not all(names):
            raise ConfigError(
                f"data.columns: found {self.columns!r}, expected numbers or names separated by commas, as in 1,3"
            )
        header = self.header
        if header is None:
            path = Path(str(files))
            columns = READERS.of(path).delimiter == "," or sentence_layout(path) == "columns"
            possible = data.header and not parallel and columns
            header = possible and begins_with_header(data, path)
            if not (header or possible or parallel) and names == data.columns:
                warn_of_header(path)
        return replace(data, columns=() if parallel else names, header=header, media=self.media or data.media)


def warn_of_header(path: Path) -> None:
    """Warn of a first line that seems to name columns, which the run reads as data."""
    from dragoman.data.readers.header import header_warning

    if path.is_file() and (warning := header_warning(path, "add data.header=true")):
        click.echo(f"warning: {warning}", err=True)


def begins_with_header(data: DataConfig, path: Path) -> bool:
    """Whether a file has a header as the training file has one; a first line of other words is read as data, and told.

    It is trusted to have one if columns have names, or if one of both files cannot be read now.
    """
    from dragoman.data.config import paths_of
    from dragoman.data.readers.base import READERS
    from dragoman.data.readers.columns import is_header

    files = (path, *map(Path, paths_of(data.train)))
    rows, *others = (READERS.of(file).first_rows(file) for file in files)
    trained = [cells[0] for cells in others if cells]
    named = any(not column.isdigit() for column in data.columns)
    if named or not rows or not trained or rows[0] in trained or is_header(rows[0]):
        return True
    click.echo(
        f"warning: {path}:1 is not the header of the training file and is read as data; add "
        "data.header=true if it names the columns",
        err=True,
    )
    return False
