"""Which media files a manifest, a folder or an archive names."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import NamedTuple

from dragoman.data.media.archives import ARCHIVE_SEPARATOR, ARCHIVES, is_archive, join_path, members, split_path
from dragoman.data.readers.base import READERS, compression_of
from dragoman.errors import DataError

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".caf", ".sph", ".w64")
IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp"),
    *(".pbm", ".pgm", ".ppm", ".pnm", ".jp2", ".avif"),
)


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


def list_media(path: str | Path, suffixes: tuple[str, ...]) -> MediaListing:
    """The media files that a path names.

    A folder or archive: its files with one of the suffixes, sorted by name. A single file may have any suffix.
    """
    is_single = ARCHIVE_SEPARATOR in str(path) or not (Path(path).is_dir() or is_archive(path))
    return MediaListing([str(path)]) if is_single else _list_folder(Path(path), suffixes)


def _list_folder(path: Path, suffixes: tuple[str, ...]) -> MediaListing:
    if path.is_dir():
        files = [str(file) for file in sorted(path.iterdir()) if file.is_file()]
    else:
        names = sorted({name for name in members(str(path)).values() if name})
        files = [f"{path}{ARCHIVE_SEPARATOR}{name}" for name in names]
    media = [
        file
        for file in files
        if file.lower().endswith(suffixes) and not PurePath(split_path(file).name).name.startswith(".")
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
    return is_container or str(path).lower().endswith((*AUDIO_SUFFIXES, *IMAGE_SUFFIXES)) or _is_binary(Path(path))


def _is_binary(path: Path) -> bool:
    """Whether a file has a zero byte near its start, which no list of paths has; a manifest may, such as .parquet."""
    if not path.is_file() or READERS.of(path).table or compression_of(path):
        return False
    with path.open("rb") as file:
        return b"\0" in file.read(1024)
