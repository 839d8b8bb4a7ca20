"""Read lines of text from files and streams, plain or compressed, in constant memory."""

from __future__ import annotations

import gzip
import importlib
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from glob import has_magic
from itertools import islice, starmap
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from dragoman.base import DataError, MissingExtraError, suggestion
from dragoman.data.examples import Example, Fault, FaultError, normalise
from dragoman.data.readers.base import READERS, LineSpan, Reader, ReadOptions, ShardRow, SourceRow, compression_of

_BLOCK_BYTES = 1 << 18
_MAX_LINE_BYTES = 1 << 26
MAX_SHARD_LINE = 1 << 20  # bytes; a longer line of a shard is a faulty row
FIRST_ROWS = 200  # lines that show whether a file has a header
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Control characters as bytes, to check a whole block at once; line feeds and tabs separate lines and columns.
_CONTROL_BYTES = bytes(byte for byte in (*range(0x20), 0x7F) if byte not in b"\t\n")
_HARMLESS = re.compile(rb"\xc2[\x80-\x9f]|\xef\xbb\xbf")  # as `examples.normalise` removes them
WHOLE = LineSpan(1, 0, None)
Read = Callable[[int], bytes]
Item = TypeVar("Item")


def read_lines(source: str | Path | BinaryIO | None) -> Iterator[str]:
    """The lines of a file, a binary stream or standard input ("-" or None), empty ones included.

    Each line is yielded as soon as it arrives, so that a pipe gets its predictions line by line.
    """
    if isinstance(source, str | Path) and str(source) != "-":
        if not Path(source).is_fifo():  # lines are read once, so a pipe will do
            check_file(Path(source))
        if not (reader := READERS.of(source)).lines:
            raise DataError(f"{source}: found {reader.about}, expected lines of text")
    return _read_lines(source)


def count_lines(path: str | Path | None) -> int | None:
    """The number of lines of a plain file; None for a stream, and for compressed files, which would be read twice."""
    if path is None or not Path(path).is_file() or not READERS.of(path).lines or compression_of(path):
        return None
    count, last = 0, b"\n"
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def _read_lines(source: str | Path | BinaryIO | None) -> Iterator[str]:
    stream = sys.stdin.buffer if source is None or str(source) == "-" else source
    opened: AbstractContextManager[Read]
    if isinstance(stream, str | Path):
        name, opened = str(stream), open_bytes(Path(stream), unbuffered=True)
    else:
        name = "standard input" if stream is sys.stdin.buffer else str(getattr(stream, "name", "stream"))
        opened = nullcontext(_unbuffered_read(stream))
    with opened as read:
        for _, line in numbered_lines(read, name):
            if isinstance(line, Fault):
                raise DataError(str(line))
            yield line


def parse_lines(
    path: Path, parse: Callable[[str, int], Item], header: bool = False, spans: Sequence[LineSpan] = ()
) -> Iterator[Item | Fault]:
    """The result of `parse(line, number)` for every line after the header, or the fault of the line."""
    span = spans[0] if spans else WHOLE
    with open_bytes(path, span=span) as read:
        for number, line in numbered_lines(read, str(path), span.line):
            if header and number == 1:
                continue
            if isinstance(line, Fault):
                yield line
                continue
            try:
                item = parse(clean := normalise(line), number)
            except FaultError as fault:
                yield fault.at(f"{path}:{number}")
                continue
            yield item._replace(normalised=True) if clean is not line and isinstance(item, Example) else item


def check_file(path: Path) -> None:
    """Raise DataError if a file does not exist or cannot be read line by line; the message says what to do."""
    if path.name.lower().endswith(".json"):
        raise DataError(
            f"{path}: found .json, expected .jsonl with one object on each line; convert an array with: "
            "jq -c '.[]' IN.json > OUT.jsonl"
        )
    try:
        if path.is_dir():
            raise DataError(f"{path}: found a folder, expected a file")
        if path.is_fifo():
            raise DataError(
                f"{path}: found a pipe, which can be read only once, expected a file; write it to a file first"
            )
        if path.exists():
            return
        if has_magic(str(path)):
            raise DataError(f"{path}: no file matches this pattern")
        if path.is_symlink():
            raise DataError(f"{path}: the symbolic link leads to no file")
        if not path.parent.is_dir():
            raise DataError(f"{path}: no such file; the folder '{path.parent}' does not exist")
        match = suggestion(path.name, (other.name for other in path.parent.iterdir()))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    raise DataError(f"{path}: no such file{match or '.'}")


def zstandard() -> Any:
    """The module that reads .zst; Python has one from 3.14 on."""
    try:
        return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    except ImportError:
        raise MissingExtraError("reading .zst files", "backports.zstd", "documents") from None


def _unbuffered_read(stream: Any) -> Read:
    """A read function that returns what is there rather than waiting for a full block."""
    read: Read = getattr(stream, "read1", stream.read)
    return read


@contextmanager
def open_bytes(path: Path, unbuffered: bool = False, span: LineSpan = WHOLE) -> Iterator[Read]:
    """The function that reads a file's decompressed bytes; every failure is a DataError with the path."""
    assert span == WHOLE or not compression_of(path)
    compression = compression_of(path)
    damage: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
    try:
        stream: Any
        if compression == ".gz":
            stream = gzip.GzipFile(path, "rb")
        elif compression == ".zst":
            zstd = zstandard()
            damage = (*damage, zstd.ZstdError)
            stream = zstd.open(path, "rb")
        else:
            stream = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    with stream:
        raw = _unbuffered_read(stream) if unbuffered else stream.read
        if span.start:
            stream.seek(span.start)
        left = math.inf if span.end is None else span.end - span.start

        def read(size: int) -> bytes:
            nonlocal left
            try:
                data: bytes = raw(int(min(size, left)))
                left -= len(data)
            except damage as error:
                raise DataError(f"{path}: compressed data is damaged or cut short ({error})") from error
            except OSError as error:
                raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
            return data

        yield read


def _blocks(read: Read, name: str, start: bool = True) -> Iterator[bytes]:
    """Blocks of complete lines, without the last newline of each block; `start`: the file may begin with a mark."""
    pending, parts = 0, list[bytes]()
    while data := read(_BLOCK_BYTES):
        cut = data.rfind(b"\n")
        if cut < 0:
            pending += len(data)
            parts.append(data)
            # A binary file may have no newline at all: stop rather than read all of it into memory.
            if pending > _MAX_LINE_BYTES:
                raise DataError(f"{name}: found a line of over {_MAX_LINE_BYTES} bytes, expected lines of text")
            continue
        block = b"".join((*parts, data[:cut]))
        yield block.removeprefix(_BYTE_ORDER_MARK) if start else block
        start, pending, parts = False, len(data) - cut - 1, [data[cut + 1 :]]
    block = b"".join(parts)
    if start:
        block = block.removeprefix(_BYTE_ORDER_MARK)
    if block:
        yield block


class _Block(NamedTuple):
    first: int  # number of the first line, from 1
    lines: list[str]
    faults: dict[int, Fault]  # lines that are not UTF-8, by number; in `lines` they are ""
    clean: bool  # neither faults nor control characters


OTHER_FILES = {
    b"\x1f\x8b": "gzip data; name the file .gz, so that it is read as such",
    b"\x28\xb5\x2f\xfd": "zstandard data; name the file .zst, so that it is read as such",
    b"PK\x03\x04": "a zip archive or a spreadsheet; unpack it, or save the sheet as .csv",
    b"\xff\xfe": "UTF-16 text; convert it with: iconv -f UTF-16 -t UTF-8 IN > OUT",
    b"\xfe\xff": "UTF-16 text; convert it with: iconv -f UTF-16 -t UTF-8 IN > OUT",
}  # by the first bytes


# The first bytes of a file, and how many zeros among them, and which share, no text in UTF-8 has. A few are a fault of
# their lines.
BINARY_LOOK, FEW_ZEROS, ZEROS = 4096, 100, 0.2


def zero_bytes(start: bytes) -> str:
    """What a file seems to be that begins with many zero bytes, and what to do; "" if it has few."""
    zeros = start.count(0)
    if zeros < max(FEW_ZEROS, ZEROS * len(start)):
        return ""
    for place, encoding in ((1, "UTF-16LE"), (0, "UTF-16BE")):
        if start[place::2].count(0) > 0.9 * zeros:
            return f"{encoding} text, expected UTF-8 text; convert it with: iconv -f {encoding} -t UTF-8 IN > OUT"
    return "zero bytes, as in a program or a picture; expected UTF-8 text"


def text_blocks(read: Read, name: str, first: int = 1) -> Iterator[_Block]:
    """Blocks of lines from number `first` on; checking and decoding a whole block at once makes reading fast."""
    for block in _blocks(read, name, first == 1):
        if first == 1 and (other := next((what for start, what in OTHER_FILES.items() if block.startswith(start)), "")):
            what, _, advice = other.partition("; ")
            raise DataError(f"{name}: found {what}, expected UTF-8 text; {advice}")
        if first == 1 and (other := zero_bytes(block[:BINARY_LOOK])):
            raise DataError(f"{name}: found {other}")
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n").removesuffix(b"\r")
        faults: dict[int, Fault] = {}
        try:
            lines = block.decode("utf-8").split("\n")
        except UnicodeDecodeError:
            lines = []
            for number, raw in enumerate(block.split(b"\n"), first):
                try:
                    lines.append(raw.decode("utf-8"))
                except UnicodeDecodeError as error:
                    found = f"found byte 0x{raw[error.start]:02x} at offset {error.start} of the line"
                    faults[number] = Fault(f"{name}:{number}", "bad-utf8", f"{found}, expected UTF-8")
                    lines.append("")
        clean = not faults and len(block.translate(None, _CONTROL_BYTES)) == len(block)
        yield _Block(first, lines, faults, clean and not _HARMLESS.search(block))
        first += len(lines)


def first_lines(path: Path, count: int) -> list[str]:
    """At most so many lines from the beginning of a file; none if it cannot be read now, or only once as a pipe."""
    if not path.is_file():
        return []
    try:
        with open_bytes(path) as read:
            block = next(text_blocks(read, str(path)), None)
    except (DataError, OSError):
        return []  # the reader says what is wrong
    return block.lines[:count] if block is not None else []


def numbered_lines(read: Read, name: str, first: int = 1) -> Iterator[tuple[int, str | Fault]]:
    """All lines in order with their numbers, or their faults."""
    for block in text_blocks(read, name, first):
        for number, line in enumerate(block.lines, block.first):
            yield number, block.faults.get(number, line)


# How the lines of one file become sources (it raises FaultError), and whether to leave out the first line.
SourceParser = tuple[Callable[[str], SourceRow], bool]


class LineReader(Reader):
    """A reader of files in which a line is a row: it reads standard input ("-") and can be cut at any line."""

    lines = True

    def source_parser(self, path: Path, options: ReadOptions) -> SourceParser:
        raise NotImplementedError

    def sources(self, path: Path, options: ReadOptions) -> Iterator[SourceRow | Fault]:
        lines, (parse, header) = read_lines(path), self.source_parser(path, options)

        def source_of(number: int, line: str) -> SourceRow | Fault:
            try:
                text, record, _ = parse(line)
                return SourceRow(text, record, number)
            except FaultError as fault:
                return fault.at(f"{path}:{number}")

        numbered = enumerate(lines, 1)
        return starmap(source_of, islice(numbered, 1, None) if header else numbered)

    def cut(self, path: Path, size: int) -> list[tuple[int, int]]:
        total = path.stat().st_size
        return [(start, min(start + size, total)) for start in range(0, max(total, 1), size)]

    def shard(self, path: Path, options: ReadOptions, start: int, end: int) -> Iterator[ShardRow]:
        parse, header = self.source_parser(path, options)
        for place, raw in byte_range_lines(path, start, end):
            if header and not place:
                continue
            shown = raw[:200].decode("utf-8", "replace")
            if len(raw) > MAX_SHARD_LINE:
                fault = f"found a line of over {MAX_SHARD_LINE:,} bytes, expected a sentence"
                yield ShardRow(place, None, fault, shown)
                continue
            try:
                yield ShardRow(place, parse(raw.decode()))
            except UnicodeDecodeError as error:
                fault = f"found byte 0x{raw[error.start]:02x} at {error.start}, expected UTF-8"
                yield ShardRow(place, None, fault, shown)
            except FaultError as error:
                yield ShardRow(place, None, error.detail, shown)


def byte_range_lines(path: Path, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(first byte, line) of every line that begins in start … end−1; an over-long line is cut."""
    with path.open("rb") as file:
        place = start
        if start:
            file.seek(start - 1)
            place = start - 1 + _skip_line(file)
        while place < end and (line := file.readline(MAX_SHARD_LINE + 2)):
            size = len(line)
            if not line.endswith(b"\n") and size > MAX_SHARD_LINE:
                size += _skip_line(file)
                yield place, line[: MAX_SHARD_LINE + 1]
            else:
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                yield place, line.removeprefix(_BYTE_ORDER_MARK) if not place else line
            place += size


def _skip_line(file: BinaryIO) -> int:
    """Read to the end of a line; returns how many bytes."""
    size = 0
    while part := file.readline(1 << 16):
        size += len(part)
        if part.endswith(b"\n"):
            break
    return size
