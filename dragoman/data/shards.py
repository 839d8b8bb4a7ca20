"""Cut the files of a corpus into shards of lines, so that several processes can read and tokenise them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dragoman.data.config import DataConfig, file_list
from dragoman.data.examples import Example, Fault, Pairs, file_of
from dragoman.data.formats.base import ExampleFormat
from dragoman.data.readers.base import READERS, LineSpan, compression_of

SHARD_BYTES = 1 << 24  # of the first file of an entry: 100,000 to 200,000 sentence pairs
_BLOCK = 1 << 20
_MAX_LINE = 1 << 26


class Shard(NamedTuple):
    """Consecutive lines of one entry of data.train."""

    entry: int  # its number
    spans: tuple[LineSpan, ...] = ()  # of each of its files; none: the whole entry

    @classmethod
    def from_json(cls, content: list[object]) -> Shard:
        entry, spans = content
        return cls(entry, tuple(LineSpan(*span) for span in spans))  # type: ignore[arg-type, attr-defined]


def read_shard(config: DataConfig, example_format: ExampleFormat, shard: Shard) -> Iterator[Example | Fault]:
    return example_format.read_lines(config, file_list(config.train)[shard.entry], shard.spans)


def cut_shards(config: DataConfig, example_format: ExampleFormat, size: int = SHARD_BYTES) -> list[Shard]:
    """Shards of all training files, in order. A file that cannot be cut is one shard, a compressed one for example."""
    shards = []
    for number, entry in enumerate(file_list(config.train)):
        paths = cuttable_paths(config, example_format, entry)
        shards += [Shard(number, spans) for spans in _cut(paths, size)] if paths else [Shard(number)]
    return shards


def cuttable_paths(config: DataConfig, example_format: ExampleFormat, entry: str | Pairs) -> list[Path]:
    """The files of an entry if they can be cut at any line."""
    file = file_of(entry)
    paths = [file] if file is not None else [Path(path) for path in entry.paths] if isinstance(entry, Pairs) else []
    readable = all(path.is_file() and not compression_of(path) for path in paths)
    reads_spans = file is None or READERS.of(file).reads_spans
    # A sentence and those before it must be in one shard.
    return paths if readable and reads_spans and example_format.cuttable and not config.context else []


def _cut(paths: list[Path], size: int) -> list[tuple[LineSpan, ...]]:
    files = [path.open("rb") for path in paths]
    try:
        shards: list[tuple[LineSpan, ...]] = []
        line, starts = 1, [0] * len(files)
        while (end := _line_end(files[0], starts[0] + size)) is not None:
            lines = _count_lines(files[0], starts[0], end)
            ends = [end, *(_skip(file, start, lines) for file, start in zip(files[1:], starts[1:], strict=True))]
            if None in ends:  # the other file is shorter: its reader says so
                break
            shards.append(tuple(LineSpan(line, first, last) for first, last in zip(starts, ends, strict=True)))
            line, starts = line + lines, [last for last in ends if last is not None]
        return [*shards, tuple(LineSpan(line, first, None) for first in starts)]
    finally:
        for file in files:
            file.close()


def _line_end(file: BinaryIO, place: int) -> int | None:
    """Where the first line that is not blank ends at `place` or after it; None: nothing follows that line.

    Blank lines at the end of a file are no faults, so no shard but the last may end with one.
    """
    file.seek(place - 1)
    file.readline(_MAX_LINE)
    while line := file.readline(_MAX_LINE):
        if line.decode("utf-8", "replace").strip() and line.endswith(b"\n"):
            end = file.tell()
            return end if file.read(1) else None
    return None


def _count_lines(file: BinaryIO, start: int, end: int) -> int:
    file.seek(start)
    return sum(file.read(min(_BLOCK, end - place)).count(b"\n") for place in range(start, end, _BLOCK))


def _skip(file: BinaryIO, start: int, lines: int) -> int | None:
    """The byte after so many lines; None if nothing follows them."""
    file.seek(start)
    place = start
    while block := file.read(_BLOCK):
        count = block.count(b"\n")
        if count >= lines:
            cut = -1
            for _ in range(lines):
                cut = block.index(b"\n", cut + 1)
            file.seek(place + cut + 1)
            return place + cut + 1 if file.read(1) else None
        lines, place = lines - count, place + len(block)
    return None
