"""Read lines of text from files and streams, plain or compressed, in constant memory."""

from __future__ import annotations

import gzip
import importlib
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeVar

from dragoman.data.examples import Fault, FaultError
from dragoman.errors import DataError, MissingExtraError, nearest

_BLOCK_BYTES = 1 << 18
_MAX_LINE_BYTES = 1 << 26
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Control characters as bytes, to check a whole block at once; line feeds and tabs separate lines and columns.
_CONTROL_BYTES = bytes(byte for byte in (*range(0x20), 0x7F) if byte not in b"\t\n")
_C1_CONTROLS = re.compile(rb"\xc2[\x80-\x9f]")
Read = Callable[[int], bytes]
Item = TypeVar("Item")


def read_lines(source: str | Path | BinaryIO | None) -> Iterator[str]:
    """The lines of a file, a binary stream or standard input ("-" or None), empty ones included.

    Each line is yielded as soon as it arrives, so that a pipe gets its predictions line by line.
    """
    if isinstance(source, str | Path) and str(source) != "-":
        if not Path(source).is_fifo():  # lines are read once, so a pipe will do
            check_file(Path(source))
        if file_format(Path(source))[0] == "parquet":
            raise DataError(f"{source}: found Parquet, expected lines of text")
    return _read_lines(source)


def is_jsonl(file: str | Path | None) -> bool:
    """Whether the name of a file says that its lines are JSON."""
    return file is not None and file_format(Path(file))[0] == "jsonl"


def _read_lines(source: str | Path | BinaryIO | None) -> Iterator[str]:
    if source is None or isinstance(source, str | Path):
        if source is None or str(source) == "-":
            yield from _plain_lines(_unbuffered_read(sys.stdin.buffer), "standard input")
        else:
            with open_bytes(Path(source), unbuffered=True) as read:
                yield from _plain_lines(read, str(source))
    else:
        yield from _plain_lines(_unbuffered_read(source), str(getattr(source, "name", "stream")))


def _plain_lines(read: Read, name: str) -> Iterator[str]:
    for block in text_blocks(read, name):
        for number, line in enumerate(block.lines, block.first):
            if number in block.faults:
                raise DataError(str(block.faults[number]))
            yield line


def parse_lines(path: Path, parse: Callable[[str, int], Item]) -> Iterator[Item | Fault]:
    """The result of `parse(line, number)` for every line, or the fault of the line."""
    name = str(path)
    with open_bytes(path) as read:
        for block in text_blocks(read, name):
            for number, line in enumerate(block.lines, block.first):
                if number in block.faults:
                    yield block.faults[number]
                    continue
                try:
                    yield parse(line, number)
                except FaultError as fault:
                    yield Fault(f"{name}:{number}", fault.kind, fault.detail)


def is_csv(path: Path) -> bool:
    """Whether the name of a file says that its columns are separated by commas."""
    return path.name.lower().removesuffix(".gz").removesuffix(".zst").endswith(".csv")


def file_format(path: Path) -> tuple[Literal["columns", "jsonl", "parquet"], str]:
    """The format and the compression (".gz", ".zst" or "") by the suffixes of a file."""
    name = path.name.lower()
    compression = next((suffix for suffix in (".gz", ".zst") if name.endswith(suffix)), "")
    suffix = Path(name.removesuffix(compression)).suffix
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl", compression
    return ("parquet" if suffix == ".parquet" else "columns"), compression


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
        if path.is_symlink():
            raise DataError(f"{path}: the symbolic link leads to no file")
        if not path.parent.is_dir():
            raise DataError(f"{path}: no such file; the folder '{path.parent}' does not exist")
        match = nearest(path.name, (other.name for other in path.parent.iterdir()))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    raise DataError(f"{path}: no such file." + (f" Did you mean '{match}'?" if match else ""))


def zstandard() -> Any:
    """The module that reads .zst; Python has one from 3.14 on."""
    try:
        return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    except ImportError:
        raise MissingExtraError("reading .zst files", "backports.zstd", "data") from None


def _unbuffered_read(stream: Any) -> Read:
    """A read function that returns what is there rather than waiting for a full block."""
    read: Read = getattr(stream, "read1", stream.read)
    return read


@contextmanager
def open_bytes(path: Path, unbuffered: bool = False) -> Iterator[Read]:
    """The function that reads a file's decompressed bytes; every failure is a DataError with the path."""
    compression = file_format(path)[1]
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

        def read(size: int) -> bytes:
            try:
                data: bytes = raw(size)
            except damage as error:
                raise DataError(f"{path}: compressed data is damaged or cut short ({error})") from error
            except OSError as error:
                raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
            return data

        yield read


def _blocks(read: Read, name: str) -> Iterator[bytes]:
    """Blocks of complete lines, without the last newline of each block."""
    start, pending, parts = True, 0, list[bytes]()
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


def text_blocks(read: Read, name: str) -> Iterator[_Block]:
    """Blocks of lines; checking and decoding a whole block at once makes reading fast."""
    first = 1
    for block in _blocks(read, name):
        if first == 1 and (other := next((what for start, what in OTHER_FILES.items() if block.startswith(start)), "")):
            raise DataError(f"{name}: found {other}; expected UTF-8 text")
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
        yield _Block(first, lines, faults, clean and not _C1_CONTROLS.search(block))
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


def numbered_lines(read: Read, name: str) -> Iterator[str | Fault]:
    """All lines in order, or their faults."""
    for block in text_blocks(read, name):
        if block.faults:
            yield from (block.faults.get(number, line) for number, line in enumerate(block.lines, block.first))
        else:
            yield from block.lines
