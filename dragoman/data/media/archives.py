"""Paths of media files: plain files, or members of a tar archive, "pages.tar.gz::line-7.png"."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dragoman.data.examples import Fault, FaultKind
from dragoman.errors import DataError, nearest

ARCHIVES = (".tar", ".tar.gz", ".tgz")
ARCHIVE_SEPARATOR = "::"
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)


class MediaError(DataError):
    """A media file that cannot be used."""

    def __init__(self, path: str, kind: FaultKind, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path, self.kind, self.detail = path, kind, detail

    @property
    def fault(self) -> Fault:
        """The error as a fault."""
        return Fault(self.path, self.kind, self.detail)


def is_archive(path: str | Path) -> bool:
    """Whether a path has the suffix of an archive."""
    return str(path).lower().endswith(ARCHIVES)


def join_path(base: str | Path, name: str) -> str:
    """The path of a name inside the folder or archive `base`; "" is the current folder."""
    if is_archive(base):
        return f"{base}{ARCHIVE_SEPARATOR}{name}"
    return str(Path(base) / name)


class MediaPath(NamedTuple):
    """The two parts of a path."""

    archive: str  # "": `name` is a plain file
    name: str


def split_path(path: str) -> MediaPath:
    """Split a path into archive and member."""
    archive, separator, name = path.rpartition(ARCHIVE_SEPARATOR)
    return MediaPath(archive, name) if separator else MediaPath("", path)


@lru_cache(maxsize=16)
def _members(archive: str, version: tuple[int, int]) -> dict[str, str | None]:
    """The file of each name or end of a name ("7.png" for "pages/7.png"); None where several files have that end.

    `version` is the size and modification time of the archive: a cached result is valid while they stay the same.
    """
    by_end: dict[str, str | None] = {}
    by_name: dict[str, str | None] = {}
    _verify_gzip(archive)
    with _open_tar(archive) as tar:
        for member in tar:
            if not member.isfile():
                continue
            parts = PurePosixPath(member.name).parts
            by_name["/".join(parts)] = member.name
            for start in range(1, len(parts)):
                end = "/".join(parts[start:])
                by_end[end] = None if by_end.get(end, member.name) != member.name else member.name
    return by_end | by_name  # a full name wins over the end of another


def members(archive: str) -> dict[str, str | None]:
    """The file of each name or end of a name in an archive; errors name the archive."""
    try:
        status = Path(archive).stat()
        return _members(archive, (status.st_size, status.st_mtime_ns))
    except _DAMAGE as error:
        raise DataError(f"{archive}: the archive is damaged or cut short ({error})") from error
    except OSError as error:
        raise DataError(f"{archive}: cannot be read ({error.strerror or error})") from error


def _verify_gzip(archive: str) -> None:
    """Read a gzipped archive to its end, where its checksum is, because tarfile does not check it."""
    with Path(archive).open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            return
        file.seek(0)
        with gzip.GzipFile(fileobj=file) as plain:
            while plain.read(1 << 20):
                pass


def _open_tar(archive: str, stream: bool = True) -> tarfile.TarFile:
    return tarfile.open(archive, "r|*" if stream else "r:*")


def _member_name(path: MediaPath) -> str:
    """The full name of a member; the path may leave out its folders."""
    names = members(path.archive)
    shown = f"{path.archive}{ARCHIVE_SEPARATOR}{path.name}"
    name = "/".join(PurePosixPath(path.name).parts)
    if name not in names:
        match = nearest(name, names)
        suggestion = f". Did you mean '{match}'?" if match else ""
        raise MediaError(shown, "missing-file", f"found no such member among those of the archive{suggestion}")
    member = names[name]
    if member is None:
        raise MediaError(shown, "missing-file", "several members end so, expected the folder too")
    return member


def read_bytes(path: str) -> bytes:
    """The content of one media file."""
    parts = split_path(path)
    if not parts.archive:
        return _read_file(path)
    member = _member_name(parts)
    try:
        with _open_tar(parts.archive, stream=False) as tar:
            file = tar.extractfile(member)
            assert file is not None  # only files are members
            return file.read()
    except (*_DAMAGE, OSError) as error:
        raise DataError(f"{parts.archive}: the archive is damaged or cut short ({error})") from error


def _read_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise MediaError(path, "missing-file", "found no such file") from None
    except IsADirectoryError:
        raise MediaError(path, "unreadable-file", "found a folder, expected a file") from None
    except OSError as error:
        raise MediaError(path, "unreadable-file", f"cannot be read ({error.strerror or error})") from None


def read_many(paths: Sequence[str]) -> Iterator[tuple[int, bytes | Fault]]:
    """(index, content or fault) of every path, not in order: each archive is read once, from front to back.

    One file is in memory at a time. A damaged archive raises DataError; a missing or unreadable file is a fault.
    """
    wanted: dict[str, dict[str, list[int]]] = {}
    for index, path in enumerate(paths):
        parts = split_path(path)
        try:
            if parts.archive:
                wanted.setdefault(parts.archive, {}).setdefault(_member_name(parts), []).append(index)
            else:
                yield index, _read_file(path)
        except MediaError as error:
            yield index, error.fault
    for archive, indices in wanted.items():
        try:
            with _open_tar(archive) as tar:
                for member in tar:
                    wanting = indices.pop(member.name, None) if member.isfile() else None
                    if wanting is None:
                        continue
                    file = tar.extractfile(member)
                    assert file is not None
                    data = file.read()
                    for index in wanting:
                        yield index, data
        except _DAMAGE as error:
            raise DataError(f"{archive}: the archive is damaged or cut short ({error})") from error
        assert not indices, "the archive changed while it was read"
