"""Files that appear whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.errors import DataError


def check_writable(path: str | Path) -> None:
    """Find out before long work that its result would have no place."""
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path}: found a folder, expected a file to write")
    if not path.parent.is_dir():
        raise DataError(f"{path}: cannot be written; the folder '{path.parent}' does not exist")


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """A file to write beside `path`, moved there at the end of the block; a device or pipe is written directly."""
    special = Path(path).exists() and not Path(path).is_file()
    final = Path(path) if special else Path(path).resolve()
    beside = final if special else final.with_name(f".{final.stem}.part{final.suffix}")
    try:
        yield beside
        if not special:
            beside.replace(final)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        if not special:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
