"""Atomic and durable writes, file hashes, and the cache folder."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.base.errors import DataError, RunError
from dragoman.base.portable import BINARY, NOFOLLOW


def cache_home() -> Path:
    """The cache folder: $DRAGOMAN_CACHE, or dragoman in $XDG_CACHE_HOME or ~/.cache.

    Where nothing can be written to a home, as in many containers, it is a folder of the user's own among the temporary
    files.
    """
    if os.environ.get("DRAGOMAN_CACHE"):
        return Path(os.environ["DRAGOMAN_CACHE"])
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "dragoman"
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  (it stays as it is where nobody knows a home)
    if home.is_absolute() and can_write_to(home / ".cache" / "dragoman"):
        return home / ".cache" / "dragoman"
    folder = Path(tempfile.gettempdir()) / f"dragoman-{user_name()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return private(folder, "set DRAGOMAN_CACHE to a folder that you can write to")


def can_write_to(folder: Path) -> bool:
    """Whether a folder, which is made if it is missing, can be written to."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK | os.X_OK)
    return False


def user_name() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "user"


def private(folder: Path, advice: str) -> Path:
    """A folder that nobody else can write to; RunError for any other."""
    if hasattr(os, "getuid"):
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise RunError(f"{folder}: other users can write here, expected a folder of your own; {advice}")
    return folder


# Environment variable of each compiler's cache, and the name of its folder in our cache.
COMPILER_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


def set_compiler_caches() -> None:
    """Let compilers cache their code in a folder of our cache, unless the user has chosen another folder.

    torch would cache it under /tmp, which is emptied when a machine starts. The folder is the user's own and nobody
    else can write to it, even where several users share the cache: a process runs the code that it finds there.
    """
    if all(variable in os.environ for variable in COMPILER_CACHES):
        return
    folder = cache_home().resolve() / f"compiled-{user_name()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    private(folder, "remove it")
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


# A run folder may come from anybody, so symbolic links in it are never followed for writing. Whatever is written, moved
# or deleted in a run is so by these functions (tests/test_architecture.py).


def check_folders_above(path: Path) -> None:
    """Raise RunError if a folder between a run and a part of it is a symbolic link: the part would be elsewhere.

    Links that lead to the run are the user's own.
    """
    above = path.absolute().parents
    for number, folder in enumerate(above):
        if folder.is_symlink() and any(may_be_strange(other) for other in above[number + 1 :]):
            raise RunError(
                f"{folder}: found a symbolic link, expected a folder; move the folder here, or remove the link"
            )


def may_be_strange(folder: Path) -> bool:
    """Whether this is the folder of a run, a search or a learning curve, which may come from anybody."""
    return ((folder / "config.toml").exists() and (folder / "run.json").exists()) or any(
        (folder / name).exists() for name in ("search.json", "curve.json")
    )


def create_empty(path: Path) -> Path:
    """Create an empty file; a link or an older file of that name is removed first."""
    remove_file(path)
    os.close(open_handle(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    return path


def open_handle(path: Path, flags: int, mode: int = 0o666) -> int:
    """A handle of a file by the flags of os.open; a symbolic link, a pipe or a device is an OSError or a RunError."""
    check_folders_above(path)
    check_regular(path)
    return os.open(path, flags | NOFOLLOW | BINARY, mode)


def check_regular(path: Path) -> None:
    """Raise RunError if a path is a pipe, a device or a socket, or a link to one: reading it might never end."""
    with suppress(OSError, ValueError):  # no such file
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise RunError(f"{path}: found a pipe, a device or a socket, expected a file; remove it")


def check_no_pipes(folder: Path, is_part: Callable[[str], bool] = lambda name: True) -> None:
    """Raise RunError if a part of a folder is no file and no folder; `is_part` chooses by name."""
    folders = [folder]
    for place in folders:
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if place is folder and not is_part(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False):
                    check_regular(Path(entry.path))


def remove_file(path: Path) -> None:
    """Remove a file, or a symbolic link itself, if it exists."""
    check_folders_above(path)
    path.unlink(missing_ok=True)


def move(source: Path, target: Path) -> None:
    """Rename a file or folder; what is at the target is replaced, a symbolic link itself."""
    check_folders_above(source)
    check_folders_above(target)
    if target.is_symlink():
        target.unlink()
    source.replace(target)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file of a new folder, neither atomically nor durably."""
    with path_in_errors(path):
        create_empty(path).write_bytes(content)


def append_text(path: Path, text: str) -> None:
    """Append to a text file, which is created if it does not exist; a symbolic link raises RunError."""
    if path.is_symlink():
        raise RunError(f"{path}: found a symbolic link, expected a file; remove the link")
    handle = open_handle(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with path_in_errors(path), os.fdopen(handle, "a", encoding="utf-8", newline="\n") as file:
        file.write(text)


def make_folder(path: Path) -> Path:
    """Create a folder inside a run if it does not exist; a symbolic link raises RunError."""
    if path.is_symlink():
        raise RunError(f"{path}: found a symbolic link, expected a folder; move the folder here, or remove the link")
    check_folders_above(path)
    path.mkdir(parents=True, exist_ok=True)
    return path


def make_temporary(parent: Path, prefix: str) -> Path:
    """Create a new folder with a random name; unlike mkdtemp it leaves permissions to the user's umask."""
    check_folders_above(parent / prefix)
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(4)}"
        with suppress(FileExistsError):
            folder.mkdir()
            return folder


def remove_folder(path: Path) -> None:
    """Remove a folder and its content, or a file, if it exists; for a symbolic link only the link."""
    check_folders_above(path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(FileNotFoundError, NotADirectoryError):
        path.unlink()


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
    move(temporary, target)


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically and durably."""
    temporary = create_empty(path.with_name(f".{path.name}.part"))
    with path_in_errors(path):
        temporary.write_text(text, encoding="utf-8")
    sync(temporary)
    move(temporary, path)
    sync(path.parent)


# What Dragoman writes to a run folder and reads again.
RUN_FILES = {
    "run.json", "config.toml", "data.json", "tokenizer", "checkpoints", "best", "weights.safetensors", "metrics.jsonl",
    "lock", "base.safetensors", "general.json", "imported.json", "shortlist.safetensors", "calibration.json",
    "tensorboard", "ensemble.json", "versions", "tracking", "train.log",
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
            move(temporary, final)
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
