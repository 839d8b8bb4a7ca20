"""How a command reads a file of examples: as the run's own data were read, unless it is told otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.errors import ConfigError

if TYPE_CHECKING:
    from dragoman.data.config import DataConfig
    from dragoman.data.examples import Pairs

columns_option = click.option(
    "--columns", metavar="A,B", help="Columns of FILE, by number or name, as data.columns. [default: the run's]"
)
header_option = click.option(
    "--header/--no-header", default=None, help="Whether the first line of FILE names its columns. [default: the run's]"
)


def reading_of(
    data: DataConfig,
    files: str | Pairs,
    columns: str | None = None,
    header: bool | None = None,
    media: str | None = None,
) -> DataConfig:
    """The run's settings of data for other files; a header is not looked for where there can be none."""
    from dragoman.data.examples import Pairs
    from dragoman.data.readers.conll import sentence_layout

    parallel = isinstance(files, Pairs)
    if parallel and (columns is not None or header is not None):
        raise ConfigError(f"--{'columns' if columns is not None else 'header'} goes with FILE, not with two files")
    names = data.columns if columns is None else tuple(name.strip() for name in columns.split(","))
    if not all(names):
        raise ConfigError(f"--columns: found {columns!r}, expected numbers or names with commas between, as in 1,3")
    if header is None:
        header = data.header and not parallel and sentence_layout(Path(str(files))) == "columns"
    return replace(data, columns=() if parallel else names, header=header, media=media or data.media)
