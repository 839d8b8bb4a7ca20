"""How a user's inputs are read: settings that may differ from those of training, and the media that a path names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.base import ConfigError, DataError
from dragoman.base.config import setting
from dragoman.data.examples import Fault, Pairs, file_of
from dragoman.data.media import files as media_files
from dragoman.data.readers.base import READERS, ReadOptions, column_names, suffix_of
from dragoman.data.readers.conll import CONLL_SUFFIXES
from dragoman.data.readers.lines import read_lines

if TYPE_CHECKING:
    from dragoman.data.config import DataConfig

Warn = Callable[[str], None]


@dataclass(frozen=True)
class ReadingOptions:
    """How a file of examples or inputs is read; None: as the run read its own data."""

    columns: str | None = setting(None, help="columns of FILE, by number or name, as in 1,3")
    header: bool | None = setting(None, help="whether the first line of FILE names its columns")
    media: str | None = setting(None, help="folder or archive with the files that a manifest names")
    skip_unreadable: bool = setting(False, help="leave out and count recordings or pictures that cannot be read")

    @property
    def table(self) -> bool:
        """Whether lines have columns, also where the suffix of the file does not say so."""
        return self.columns is not None or bool(self.header)

    def applied(self, data: DataConfig, files: str | Path | Pairs, warn: Warn) -> DataConfig:
        """The run's data settings changed by these options; a header is not expected where there can be none."""
        from dragoman.data.readers.header import begins_with_header, header_warning

        path = file_of(files)
        if path is None and (self.columns, self.header) != (None, None):
            name = "columns" if self.columns is not None else "header"
            raise ConfigError(f"data.{name} goes with FILE, not with two files")
        names = data.columns if self.columns is None else column_names(self.columns)
        if not all(names):
            raise ConfigError(
                f"data.columns: found {self.columns!r}, expected numbers or names separated by commas, as in 1,3"
            )
        media = self.media or data.media
        if path is None:
            return replace(data, columns=(), header=False, media=media)
        header = self.header
        if header is None:
            possible = bool(READERS.of(path).delimiter) and suffix_of(path) not in CONLL_SUFFIXES
            header = data.header and possible and begins_with_header(data, path, warn)
            expected = data.header or names != data.columns or not path.is_file()
            if possible and not expected and (warning := header_warning(path, "add data.header=true")):
                warn(warning)
        return replace(data, columns=names, header=header, media=media)


# --- recordings and pictures


class MediaInput(NamedTuple):
    """A recording or picture that a run reads."""

    path: str
    name: str  # as a manifest or list has it
    place: str = ""  # "path:line" of a manifest or list


def media_inputs(
    file: Path | None, config: DataConfig, source: Any, reading: ReadingOptions, warn: Warn
) -> Iterator[MediaInput]:
    """The inputs that a path names: itself, or those of a folder, an archive, a manifest or a list with a path a line.

    `source` are the settings of the features. Without a file the list is on standard input.
    """
    path = file or Path("-")
    typed = str(path) == "-"
    listed = typed or not media_files.is_media(path)
    if READERS.of(path).table and listed:
        return manifest_inputs(path, config, reading, warn)
    if reading.media is not None:
        kind = " (.tsv, .jsonl, …)" if listed and not typed else ""
        raise ConfigError(f"data.media is for manifests{kind}, found {'standard input' if typed else path}")
    if listed:
        lines = enumerate(read_lines(path), 1)
        return (MediaInput(name, name, "" if typed else f"{path}:{line}") for line, name in lines)
    if media_files.reads_folders(source):
        return (MediaInput(name, name) for name in media_files.list_videos(path).paths)
    endings = media_files.AUDIO_SUFFIXES if source.kind == "audio" else media_files.IMAGE_SUFFIXES
    listing = media_files.list_media(path, endings)
    if listing.skipped:
        total = f"{listing.skipped + len(listing.paths):,}"
        warn(f"{path}: {listing.skipped:,} of {total} files skipped, no {media_files.media_kind(endings)} by name")
    return (MediaInput(name, name) for name in listing.paths)


def manifest_inputs(path: Path, config: DataConfig, reading: ReadingOptions, warn: Warn) -> Iterator[MediaInput]:
    """The source of each row of a manifest; other columns are ignored."""
    reader, checked = READERS.of(path), bool(reading.media) or not config.media
    data = reading.applied(config, path, warn)
    base, columns = data.media or str(path.parent), data.columns[:1]
    if reading.columns is None and reader.delimiter and not data.header and not all(map(str.isdigit, columns)):
        columns = ()  # a run trained on named fields reads the first column
    for number, row in enumerate(reader.sources(path, ReadOptions(columns, data.header)), 1):
        if isinstance(row, Fault):
            raise DataError(str(row))
        if row.text and not checked and media_files.is_relative(row.text):
            media_files.check_media_folder(config.media, "data.media of the run (data.media=PATH names another)")
            checked = True
        place = f"{path}:{row.line or number}"
        yield MediaInput(media_files.resolve_path(base, row.text) if row.text else "", row.text, place)
