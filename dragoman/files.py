"""Files on disk: whole or not at all, and known by their hash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.errors import DataError


def sync(path: Path) -> None:
    """Make sure a file's or folder's content is on disk."""
    if os.name == "nt" and path.is_dir():  # Windows does not open folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: Path) -> str:
    """A hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step, durably."""
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text, encoding="utf-8")
    sync(beside)
    beside.replace(path)
    sync(path.parent)


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


def run_name(path: str) -> str:
    """A folder name for a data or configuration file: its name without endings."""
    name = Path(path).name
    for suffix in (".gz", ".zst", ".toml", ".tsv", ".txt", ".jsonl", ".ndjson", ".parquet"):
        if name.lower().endswith(suffix):
            name = name[: -len(suffix)]
    return name or "run"
