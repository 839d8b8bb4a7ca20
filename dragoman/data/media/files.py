"""Media files: plain files, or members of a tar archive, "pages.tar.gz::line-7.png"; which of them a path names."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, NamedTuple

from dragoman.base import DataError, suggestion
from dragoman.data.examples import Fault, FaultKind
from dragoman.data.readers.base import READERS, compression_of

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".caf", ".sph", ".w64")
IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp"),
    *(".pbm", ".pgm", ".ppm", ".pnm", ".jp2", ".avif"),
)
ARCHIVES = (".tar", ".tar.gz", ".tgz")
ARCHIVE_SEPARATOR = "::"
# ValueError, OverflowError and RecursionError: tarfile does not check every number of a header.
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError, RecursionError)
# A small file can claim any size, so sizes are checked before anything is allocated.
MAX_FILE_BYTES = 256 << 20  # of one media file
MAX_HEADER_BYTES = 1 << 20  # of a long name or of other data about a member
MAX_NAMES = 100_000_000  # characters of all names and their ends in an archive


def kind_by_name(name: str) -> str:
    """ "audio" or "picture" by the suffix of a file; else empty."""
    name = name.lower()
    return "audio" if name.endswith(AUDIO_SUFFIXES) else "picture" if name.endswith(IMAGE_SUFFIXES) else ""


class MediaError(DataError):
    """A media file that cannot be used."""

    def __init__(self, path: str, kind: FaultKind, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path, self.kind, self.detail = path, kind, detail

    @property
    def fault(self) -> Fault:
        return Fault(self.path, self.kind, self.detail)


def is_archive(path: str | Path) -> bool:
    return str(path).lower().endswith(ARCHIVES)


def join_path(base: str | Path, name: str) -> str:
    """The path of a name inside the folder or archive `base`; "" is the current folder."""
    if is_archive(base):
        return f"{base}{ARCHIVE_SEPARATOR}{name}"
    return str(Path(base) / name)


def split_path(path: str) -> tuple[str, str]:
    """The archive and the name inside it; the archive of a plain file is ""."""
    archive, _, name = path.rpartition(ARCHIVE_SEPARATOR)
    return archive, name


class _Index(NamedTuple):
    """The files of an archive."""

    names: dict[str, str | None]  # by name or end of a name ("7.png" for "pages/7.png"); None: several end so
    places: dict[str, int]  # where the last member of each name begins: as for tar, the last one counts


@lru_cache(maxsize=16)
def _read_index(archive: str, version: tuple[int, int]) -> _Index:
    """`version` is the size and modification time of the archive: a result is valid while they stay the same."""
    by_end: dict[str, str | None] = {}
    by_name: dict[str, str | None] = {}
    places: dict[str, int] = {}
    characters = 0
    if _is_gzip(archive):
        with gzip.open(archive) as plain:
            while plain.read(1 << 20):  # its checksum is at the end, and tarfile does not check it
                pass
    with _open_tar(archive) as tar:
        for member in _each(tar):
            if not member.isfile():
                continue
            parts = PurePosixPath(member.name).parts
            by_name["/".join(parts)] = member.name
            places[member.name] = member.offset
            characters += len(parts) * len(member.name)
            if characters > MAX_NAMES:
                raise tarfile.ReadError(f"its names have more than {MAX_NAMES:,} characters, counting folders")
            for start in range(1, len(parts)):
                end = "/".join(parts[start:])
                by_end[end] = None if by_end.get(end, member.name) != member.name else member.name
    return _Index(by_end | by_name, places)  # a full name wins over the end of another


def members(archive: str) -> dict[str, str | None]:
    return _index(archive).names


def _index(archive: str) -> _Index:
    """The index of an archive; errors name the archive."""
    try:
        status = Path(archive).stat()
        return _read_index(archive, (status.st_size, status.st_mtime_ns))
    except _DAMAGE as error:
        raise DataError(f"{archive}: the archive is damaged or cut short ({error})") from error
    except OSError as error:
        raise DataError(f"{archive}: cannot be read ({error.strerror or error})") from error


def _is_gzip(archive: str) -> bool:
    with Path(archive).open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


# Headers that a name or other data about the next member follow, of GNU tar and of POSIX.
_EXTENDED = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)


class _Header(tarfile.TarInfo):
    """A header of an archive; tarfile would read one that claims any number of bytes into memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        """Called by every version of tarfile once the block of a header is read; recent ones do not call `frombuf`."""
        if self.size > MAX_HEADER_BYTES and self.type in _EXTENDED:
            raise tarfile.ReadError(f"found a header of {self.size:,} bytes, expected at most {MAX_HEADER_BYTES:,}")
        return super()._proc_member(archive)  # type: ignore[misc]


@contextmanager
def _open_tar(archive: str) -> Iterator[tarfile.TarFile]:
    """Open a plain or gzipped archive; others, which can be much smaller than their content, are not read."""
    if _is_gzip(archive):  # tarfile itself would decompress ten megabytes at a time
        with gzip.open(archive) as plain, tarfile.open(fileobj=plain, mode="r|", tarinfo=_Header) as tar:
            yield tar
    else:
        with tarfile.open(archive, "r:", tarinfo=_Header) as tar:
            yield tar


def _each(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members of an archive, which tarfile would otherwise all keep."""
    for member in tar:
        yield member
        tar.members = []  # type: ignore[attr-defined]


def _too_large(path: str, size: int) -> Fault:
    return Fault(path, "over-long", f"found a file of {size:,} bytes, expected at most {MAX_FILE_BYTES:,}")


def _member_name(path: str) -> str:
    """The full name of a member; the path may leave out its folders."""
    archive, name = split_path(path)
    names = members(archive)
    name = "/".join(PurePosixPath(name).parts)
    if name not in names:
        found = f"found no such member among those of the archive{suggestion(name, names)}"
        raise MediaError(path, "missing-file", found)
    member = names[name]
    if member is None:
        raise MediaError(path, "missing-file", "several members end so, expected the folder too")
    return member


def read_bytes(path: str, folders: bool = False) -> bytes:
    ((_, content),) = read_many([path], folders)
    if isinstance(content, Fault):
        raise MediaError(*content)
    return content


def reads_folders(config: Any) -> bool:
    """Whether the settings of features read a folder, such as the frames of a video, as one input."""
    return getattr(config, "reads_folders", False)


def frame_files(folder: str | Path) -> list[Path]:
    """The pictures of a folder of frames, in the order of their names; numbers in names count as numbers."""
    files = [file for file in Path(folder).iterdir() if file.name.lower().endswith(IMAGE_SUFFIXES)]
    return sorted((file for file in files if not file.name.startswith(".")), key=lambda file: _by_number(file.name))


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _packed_folder(path: str) -> bytes:
    """The pictures of a folder as a tar archive, so that a video is read as one file like all others."""
    files, out = frame_files(path), io.BytesIO()
    if not files:
        raise MediaError(path, "unreadable-file", "found a folder without pictures, expected the frames of a video")
    if (size := sum(file.stat().st_size for file in files)) > MAX_FILE_BYTES:
        raise MediaError(*_too_large(path, size))
    with tarfile.open(fileobj=out, mode="w") as tar:
        for file in files:
            member = tarfile.TarInfo(file.name)
            content = file.read_bytes()
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def unpacked_folder(data: bytes, path: str) -> dict[str, bytes] | None:
    """The pictures of a tar archive by name, in their order; None: the data are no archive."""
    if data[257:262] != b"ustar":
        return None
    pictures: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in _each(tar):
                file = tar.extractfile(member) if member.isfile() else None
                if file is not None and member.name.lower().endswith(IMAGE_SUFFIXES):
                    pictures[member.name] = file.read()
    except _DAMAGE as error:
        raise MediaError(path, "unreadable-file", f"the archive is damaged or cut short ({error})") from None
    if not pictures:
        raise MediaError(path, "unreadable-file", "found an archive without pictures, expected the frames of a video")
    return dict(sorted(pictures.items(), key=lambda item: _by_number(item[0])))


def _read_file(path: str, folders: bool = False) -> bytes:
    try:
        if folders and Path(path).is_dir():
            return _packed_folder(path)
        size = Path(path).stat().st_size
        if size > MAX_FILE_BYTES:
            raise MediaError(*_too_large(path, size))
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise MediaError(path, "missing-file", "found no such file") from None
    except IsADirectoryError:
        raise MediaError(path, "unreadable-file", "found a folder, expected a file") from None
    except OSError as error:
        raise MediaError(path, "unreadable-file", f"cannot be read ({error.strerror or error})") from None


def read_many(paths: Sequence[str], folders: bool = False) -> Iterator[tuple[int, bytes | Fault]]:
    """(index, content or fault) of every path, not in order: each archive is read once, from front to back.

    With `folders` a path may be a folder of frames.

    One file is in memory at a time. A damaged archive raises DataError; a missing or unreadable file is a fault.
    """
    wanted: dict[str, dict[str, list[int]]] = {}
    for index, path in enumerate(paths):
        try:
            if archive := split_path(path)[0]:
                wanted.setdefault(archive, {}).setdefault(_member_name(path), []).append(index)
            else:
                yield index, _read_file(path, folders)
        except MediaError as error:
            yield index, error.fault
    for archive, indices in wanted.items():
        try:
            for name, content in _read_members(archive, indices):
                for index in indices[name]:
                    yield index, content if isinstance(content, bytes) else content._replace(location=paths[index])
        except _DAMAGE as error:
            raise DataError(f"{archive}: the archive is damaged or cut short ({error})") from error


def _read_members(archive: str, names: Collection[str]) -> Iterator[tuple[str, bytes | Fault]]:
    """(name, content or fault) of some members, in the order of the archive."""
    places, read = _index(archive).places, 0
    with _open_tar(archive) as tar:
        for member in _each(tar):
            if member.name not in names or member.offset != places[member.name]:
                continue
            read += 1
            if member.size > MAX_FILE_BYTES:
                yield member.name, _too_large(member.name, member.size)
                continue
            file = tar.extractfile(member)
            assert file is not None, "only files are members"
            yield member.name, file.read()
    assert read == len(names), "the archive changed while it was read"


def resolve_path(base: str | Path, name: str) -> str:
    """The path of a name from a manifest: relative names are inside the folder or archive `base`."""
    return join_path(base, name) if is_relative(name) else name


def is_relative(name: str) -> bool:
    """Whether a name from a manifest is relative to the folder or archive of the media files."""
    return ARCHIVE_SEPARATOR not in name and not Path(name).is_absolute()


def check_media_folder(base: str, setting: str) -> None:
    """Raise DataError once, instead of once per file, if `base` is no folder or archive; `setting` names it."""
    path = Path(base)
    if path.is_dir() or (path.is_file() and is_archive(path)):
        return
    found = "which is neither" if path.exists() else "which does not exist"
    raise DataError(f"{setting}: found '{base}', {found}; expected a folder or an archive ({', '.join(ARCHIVES)})")


class MediaListing(NamedTuple):
    """The paths of the media files, and how many other files were skipped."""

    paths: list[str]
    skipped: int = 0


def list_videos(path: str | Path) -> MediaListing:
    """The videos that a path names: a folder with pictures is one, another has one in each folder and file of it."""
    path = Path(path)
    if not path.is_dir() or frame_files(path):
        return MediaListing([str(path)])
    inside = sorted(
        (one for one in path.iterdir() if not one.name.startswith(".")), key=lambda one: _by_number(one.name)
    )
    videos = [str(one) for one in inside if (frame_files(one) if one.is_dir() else one.suffix == ".tar")]
    if not videos:
        raise DataError(f"{path}: found no video in it, expected pictures, or folders or archives of them")
    return MediaListing(videos, len(inside) - len(videos))


def list_media(path: str | Path, suffixes: tuple[str, ...]) -> MediaListing:
    """The media files that a path names.

    A folder or archive: its files with one of the suffixes, sorted by name. A single file may have any suffix.
    """
    path = Path(path)
    if ARCHIVE_SEPARATOR in str(path) or not (path.is_dir() or is_archive(path)):
        return MediaListing([str(path)])
    if path.is_dir():
        files = [str(file) for file in sorted(path.iterdir()) if file.is_file()]
    else:
        names = sorted({name for name in members(str(path)).values() if name})
        files = [f"{path}{ARCHIVE_SEPARATOR}{name}" for name in names]
    media = [
        file
        for file in files
        if file.lower().endswith(suffixes) and not PurePath(split_path(file)[1]).name.startswith(".")
    ]
    if not media:
        count = f"{len(files):,} file{'s' * (len(files) != 1)}"
        expected = f"expected names in {', '.join(suffixes)}; files with other suffixes can be named in a list"
        raise DataError(f"{path}: found {count} in it, none of them a {media_kind(suffixes)}; {expected}")
    return MediaListing(media, len(files) - len(media))


def media_kind(suffixes: tuple[str, ...]) -> str:
    """What files with these suffixes are called."""
    return "recording" if suffixes is AUDIO_SUFFIXES else "picture"


def is_media(path: str | Path) -> bool:
    """Whether a path names media (a file, a folder, an archive or a member of one) rather than a list of paths."""
    is_container = ARCHIVE_SEPARATOR in str(path) or Path(path).is_dir() or is_archive(path)
    return is_container or bool(kind_by_name(str(path))) or _is_binary(Path(path))


def _is_binary(path: Path) -> bool:
    """Whether a file has a zero byte near its start, which no list of paths has; a manifest may, such as .parquet."""
    if not path.is_file() or READERS.of(path).table or compression_of(path):
        return False
    with path.open("rb") as file:
        return b"\0" in file.read(1024)
