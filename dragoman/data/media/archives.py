"""Where recordings and pictures stand: files of their own, or members of an archive, "pages.tar.gz::line-7.png"."""

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
PARTED = "::"
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)


class MediaError(DataError):
    """A recording or picture that cannot be used: its place, the kind of fault, and what was found and expected."""

    def __init__(self, place: str, kind: FaultKind, detail: str) -> None:
        super().__init__(f"{place}: {detail}")
        self.place, self.kind, self.detail = place, kind, detail

    @property
    def fault(self) -> Fault:
        """The same as something to be counted."""
        return Fault(self.place, self.kind, self.detail)


def is_archive(path: str | Path) -> bool:
    """Whether a path names an archive that can be read."""
    return str(path).lower().endswith(ARCHIVES)


def location(base: str | Path, name: str) -> str:
    """Where a name from a table stands: in the folder or archive `base`; "" is the current folder."""
    if is_archive(base):
        return f"{base}{PARTED}{name}"
    return str(Path(base) / name)


class Part(NamedTuple):
    """A location taken apart."""

    archive: str  # "": the name is that of a file
    name: str


def parted(place: str) -> Part:
    """The archive and the member that a location names."""
    archive, mark, name = place.rpartition(PARTED)
    return Part(archive, name) if mark else Part("", place)


@lru_cache(maxsize=16)
def _members(archive: str, stamp: tuple[int, int]) -> dict[str, str | None]:
    """Every name, and every end of one, of the files in an archive → the whole name; None where several fit.

    `stamp` is the file's size and time of change: an archive is walked through once as long as it stays as it is.
    """
    found: dict[str, str | None] = {}
    whole: dict[str, str | None] = {}
    _check_sum(archive)
    with _opened(archive) as tar:
        for member in tar:
            if not member.isfile():
                continue
            parts = PurePosixPath(member.name).parts
            whole["/".join(parts)] = member.name
            for start in range(1, len(parts)):
                end = "/".join(parts[start:])
                found[end] = None if found.get(end, member.name) != member.name else member.name
    return found | whole  # a whole name goes before the end of another


def members(archive: str) -> dict[str, str | None]:
    """See _members; every failure names the archive."""
    try:
        about = Path(archive).stat()
        return _members(archive, (about.st_size, about.st_mtime_ns))
    except _DAMAGE as error:
        raise DataError(f"{archive}: the archive is damaged or cut short ({error})") from error
    except OSError as error:
        raise DataError(f"{archive}: cannot be read ({error.strerror or error})") from error


def _check_sum(archive: str) -> None:
    """Read a gzipped archive to its end, where its checksum stands; tarfile never looks at that."""
    with Path(archive).open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            return
        file.seek(0)
        with gzip.GzipFile(fileobj=file) as plain:
            while plain.read(1 << 20):
                pass


def _opened(archive: str, stream: bool = True) -> tarfile.TarFile:
    return tarfile.open(archive, "r|*" if stream else "r:*")


def member_of(part: Part) -> str:
    """The whole name of the member that a location means; its folders inside the archive may be left out."""
    known = members(part.archive)
    place = f"{part.archive}{PARTED}{part.name}"
    name = "/".join(PurePosixPath(part.name).parts)
    if name not in known:
        near = nearest(name, known)
        advice = f". Did you mean '{near}'?" if near else ""
        raise MediaError(place, "missing-file", f"found no such member among those of the archive{advice}")
    member = known[name]
    if member is None:
        raise MediaError(place, "missing-file", "several members end so, expected the folder too")
    return member


def read_bytes(place: str) -> bytes:
    """What stands at one location."""
    part = parted(place)
    if not part.archive:
        return _file_bytes(place)
    member = member_of(part)
    try:
        with _opened(part.archive, stream=False) as tar:
            file = tar.extractfile(member)
            assert file is not None  # only files are members
            return file.read()
    except (*_DAMAGE, OSError) as error:
        raise DataError(f"{part.archive}: the archive is damaged or cut short ({error})") from error


def _file_bytes(place: str) -> bytes:
    try:
        return Path(place).read_bytes()
    except FileNotFoundError:
        raise MediaError(place, "missing-file", "found no such file") from None
    except IsADirectoryError:
        raise MediaError(place, "unreadable-file", "found a folder, expected a file") from None
    except OSError as error:
        raise MediaError(place, "unreadable-file", f"cannot be read ({error.strerror or error})") from None


def read_many(places: Sequence[str]) -> Iterator[tuple[int, bytes | Fault]]:
    """(number, bytes or fault) of every location once, not in their order: each archive is read once, front to back.

    One file is in memory at a time. A damaged archive raises; what is missing or unreadable is a fault of its own.
    """
    wanted: dict[str, dict[str, list[int]]] = {}
    for number, place in enumerate(places):
        part = parted(place)
        try:
            if part.archive:
                wanted.setdefault(part.archive, {}).setdefault(member_of(part), []).append(number)
            else:
                yield number, _file_bytes(place)
        except MediaError as error:
            yield number, error.fault
    for archive, numbers in wanted.items():
        try:
            with _opened(archive) as tar:
                for member in tar:
                    found = numbers.pop(member.name, None) if member.isfile() else None
                    if found is None:
                        continue
                    file = tar.extractfile(member)
                    assert file is not None
                    data = file.read()
                    for number in found:
                        yield number, data
        except _DAMAGE as error:
            raise DataError(f"{archive}: the archive is damaged or cut short ({error})") from error
        assert not numbers, "the archive changed while it was read"
