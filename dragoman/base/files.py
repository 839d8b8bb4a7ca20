"""Atomic and durable writes, file hashes, and the cache folder."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.base.errors import DataError, RunError
from dragoman.base.portable import BINARY, NOFOLLOW


def cache_home() -> Path:
    """The cache folder: $DRAGOMAN_CACHE, or dragoman in $XDG_CACHE_HOME or ~/.cache."""
    if os.environ.get("DRAGOMAN_CACHE"):
        return Path(os.environ["DRAGOMAN_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dragoman"


# Environment variable of each compiler's cache, and the name of its folder in our cache.
COMPILER_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


def set_compiler_caches() -> None:
    """Let compilers cache their code in a folder of our cache, unless the user has chosen another folder.

    torch would cache it under /tmp, which is emptied when a machine starts. The folder is the user's own and nobody
    else can write to it, even where several users share the cache: a process runs the code that it finds there.
    """
    if all(variable in os.environ for variable in COMPILER_CACHES):
        return
    folder = cache_home().resolve() / f"compiled-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid"):
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise RunError(f"{folder}: other users can write here, expected a folder of your own; remove it")
    for variable, name in COMPILER_CACHES.items():
        os.environ.setdefault(variable, str(folder / name))


@contextmanager
def path_in_errors(path: Path) -> Iterator[None]:
    """Add the name of a file to the OSErrors of writing to it; only those of opening it have one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def sync(path: Path) -> None:
    """Make sure that the content of a file or folder is on disk (fsync)."""
    if os.name == "nt" and path.is_dir():  # Windows does not open folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with path_in_errors(path):
            os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def digests(paths: Sequence[Path]) -> list[str]:
    """The hashes of several files, computed at once on several cores."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:
        return list(pool.map(digest, paths))


# A run folder may come from anybody, so symbolic links in it are never followed for writing.


def create_empty(path: Path) -> Path:
    """Create an empty file; a link or an older file of that name is removed first."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW, 0o666))
    return path


def append_text(path: Path, text: str) -> None:
    """Append to a text file, which is created if it does not exist; a symbolic link raises RunError."""
    if path.is_symlink():
        raise RunError(f"{path}: found a symbolic link, expected a file; remove the link")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | NOFOLLOW | BINARY, 0o666)
    with path_in_errors(path), os.fdopen(handle, "a", encoding="utf-8", newline="\n") as file:
        file.write(text)


def make_folder(path: Path) -> Path:
    """Create a folder inside a run if it does not exist; a symbolic link raises RunError."""
    if path.is_symlink():
        raise RunError(f"{path}: found a symbolic link, expected a folder; move the folder here, or remove the link")
    path.mkdir(parents=True, exist_ok=True)
    return path


def make_temporary(parent: Path, prefix: str) -> Path:
    """Create a new folder with a random name; unlike mkdtemp it leaves permissions to the user's umask."""
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(4)}"
        with suppress(FileExistsError):
            folder.mkdir()
            return folder


def remove_folder(path: Path) -> None:
    """Remove a folder and its content, or a file, if it exists; for a symbolic link only the link."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def refuse_links(*paths: Path) -> None:
    """Raise RunError if one of these parts of a run folder is a symbolic link."""
    for path in paths:
        if path.is_symlink():
            raise RunError(f"{path}: found a symbolic link, expected a file or folder of the run; remove the link")


def copy_into(source: Path, target: Path) -> None:
    """Copy a file, or a folder into the folder `target`, which may exist.

    Every file is written beside its place and renamed. A symbolic link at the source raises RunError. So does one where
    a folder is copied to; one where a file is copied to is replaced, never followed.
    """
    refuse_links(source)
    if source.is_dir():
        make_folder(target)
        for path in source.iterdir():
            copy_into(path, target / path.name)
        return
    temporary = create_empty(target.with_name(f".{target.name}.part"))
    with path_in_errors(target):
        shutil.copyfile(source, temporary)
    temporary.replace(target)


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically and durably."""
    temporary = create_empty(path.with_name(f".{path.name}.part"))
    with path_in_errors(path):
        temporary.write_text(text, encoding="utf-8")
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


# What Dragoman writes to a run folder and reads again.
RUN_FILES = {
    "run.json", "config.toml", "data.json", "tokenizer", "checkpoints", "best", "weights.safetensors", "metrics.jsonl",
    "lock", "base.safetensors", "general.json", "imported.json", "shortlist.safetensors", "calibration.json",
    "tensorboard", "ensemble.json", "versions",
}  # fmt: skip


def is_run_file(name: str) -> bool:
    """Whether a file or folder of this name in a run folder is part of the run."""
    return name in RUN_FILES or name.startswith("ctranslate2-")


def run_of_part(path: Path) -> Path | None:
    """The run folder that a file is part of; None for any other file, also one that a user put into a run folder."""
    path = path.resolve()
    for folder in path.parents:
        if (folder / "config.toml").is_file() and (folder / "run.json").is_file():
            return folder if is_run_file(path.relative_to(folder).parts[0]) else None
    return None


def same_file(first: str | Path, second: str | Path) -> bool:
    with suppress(OSError, ValueError):
        return Path(first).samefile(second)
    return False


def check_output(path: str | Path, inputs: Iterable[str | Path] = (), name: str = "output") -> None:
    """Raise DataError if a file to write is one of the inputs or a part of a run; `name` is what the user calls it."""
    if used := next((other for other in inputs if same_file(other, path)), None):
        raise DataError(f"{name} {path}: this would overwrite the input {used}; name another file")
    if run := run_of_part(Path(path)):
        raise DataError(f"{name} {path}: this is a part of the run {run}; name a file outside it")


def check_writable(path: str | Path) -> None:
    """Raise DataError before long work if its result could not be written."""
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path}: found a folder, expected a file to write")
    if not path.parent.is_dir():
        raise DataError(f"{path}: cannot be written; the folder '{path.parent}' does not exist")


def check_creatable(path: str | Path) -> None:
    """As `check_writable` for a page or a picture, whose folder is made."""
    path = Path(path)
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise DataError(f"{path}: cannot be written; '{above.name}' is a file, expected a folder")
    if path.is_dir():
        raise DataError(f"{path}: found a folder, expected a file to write")


@contextmanager
def atomic_write(path: str | Path, follow_link: bool = True, with_folder: bool = False) -> Iterator[Path]:
    """A temporary file beside `path`, moved there at the end of the block; a device or pipe is written directly.

    `with_folder` makes the folders above it.

    A symbolic link is the user's own where the user named the path. For a part of a run folder, which may come from
    anybody, `follow_link` must be False: the file replaces the link.
    """
    special = follow_link and Path(path).exists() and not Path(path).is_file()
    final = Path(path).resolve() if follow_link and not special else Path(path)
    temporary = final if special else final.with_name(f".{final.stem}.part{final.suffix}")
    try:
        if with_folder:
            final.parent.mkdir(parents=True, exist_ok=True)
        if not special:
            create_empty(temporary)
        yield temporary
        if not special:
            temporary.replace(final)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        if not special:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def run_name(path: str) -> str:
    """The default name of a run: the name of its data or configuration file without suffixes."""
    name = Path(path).name
    for suffix in (".gz", ".zst", ".toml", ".tsv", ".csv", ".txt", ".jsonl", ".ndjson", ".parquet", ".tmx"):
        if name.lower().endswith(suffix):
            name = name[: -len(suffix)]
    return name or "run"
