"""Files on disk: whole or not at all, and known by their hash."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.errors import DataError, RunError


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


# A run folder may come from anybody, so what stands in it is data: links in it are never followed for writing.
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has none


def create_empty(path: Path) -> Path:
    """Make an empty file; a link or an older file of that name is removed, never written through."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW, 0o666))
    return path


def append_text(path: Path, text: str) -> None:
    """Add to the end of a text file, which is made where there is none; a link is refused."""
    if path.is_symlink():
        raise RunError(f"{path}: found a symbolic link, expected a file; remove the link")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _NOFOLLOW, 0o666)
    with os.fdopen(handle, "a", encoding="utf-8") as file:
        file.write(text)


def make_folder(path: Path) -> Path:
    """Make a folder inside a run if there is none; a link to another folder is refused."""
    if path.is_symlink():
        raise RunError(f"{path}: found a symbolic link, expected a folder; move the folder here, or remove the link")
    path.mkdir(parents=True, exist_ok=True)
    return path


def remove_folder(path: Path) -> None:
    """Remove a folder and all in it, if there is one; of a link the link alone."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step, durably."""
    beside = create_empty(path.with_name(f".{path.name}.part"))
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
        if not special:
            create_empty(beside)
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
