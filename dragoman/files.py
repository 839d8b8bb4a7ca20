"""Files on disk: whole or not at all, and known by their hash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.errors import DataError


def cache_home() -> Path:
    """Where work that need not be done twice is kept between runs."""
    if os.environ.get("DRAGOMAN_CACHE"):
        return Path(os.environ["DRAGOMAN_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dragoman"


# What keeps compiled code: the variable that names its folder, and the folder's name among ours.
COMPILERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


def keep_compiled() -> None:
    """Let compilers keep their code where the next run finds it, unless the user has said where.

    torch would keep it under /tmp, which is emptied when a machine starts and which other users can write to.
    """
    for variable, name in COMPILERS.items():
        os.environ.setdefault(variable, str(cache_home().resolve() / name))


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
