"""What a user names to train on: files of data, a configuration or a run folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from dragoman.base import DataError, cache_home, run_name
from dragoman.data import Files, Pairs, is_remote, local_copy
from dragoman.data.readers import as_training_data


class Request(NamedTuple):
    """What a training or a check is told."""

    what: str | None  # a data file, a configuration or a run folder; None: two parallel files
    files: Files | None  # the data; None for a configuration or a run folder
    overrides: tuple[str, ...]
    folder: str


def read_request(what: str | None, source: str | None, target: str | None, overrides: tuple[str, ...]) -> Request:
    """Check the arguments that name data or a configuration; remote files are downloaded."""
    what, source, target = (
        str(local_copy(name, cache_home())) if name is not None and is_remote(name) else name
        for name in (what, source, target)
    )
    if what is not None and "=" in what and not Path(what).exists():
        overrides, what = (what, *overrides), None
    if (source is None) != (target is None):
        raise DataError("--source and --target go together: found one, expected both")
    if what is not None and source is not None:
        raise DataError(f"found both '{what}' and --source/--target, expected one of them")
    if source is not None and target is not None:
        return Request(None, Pairs(source, target), overrides, str(Path("runs") / run_name(source)))
    if what is None:
        raise DataError("nothing to train on: name a data file, a configuration (.toml) or a run folder")
    if Path(what).is_dir():
        return Request(what, None, overrides, what)
    return Request(
        what, None if what.lower().endswith(".toml") else what, overrides, str(Path("runs") / run_name(what))
    )


def request_of(data: str | Path | Iterable[object], overrides: Sequence[str]) -> Request:
    """The request of Python users, whose data may be in memory; `folder` is empty then."""
    if isinstance(data, str | Path):
        return read_request(str(data), None, None, tuple(overrides))
    return Request(None, as_training_data(data, overrides), tuple(overrides), "")
