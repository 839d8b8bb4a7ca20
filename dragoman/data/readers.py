"""File → examples: every line becomes an example or a fault that names its place, in flat memory."""

from __future__ import annotations

import gzip
import importlib
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeVar, get_args

from dragoman.data import tags
from dragoman.errors import ConfigError, DataError, MissingExtraError, nearest
from dragoman.settings import setting

FaultKind = Literal[
    "bad-utf8",
    "wrong-columns",
    "empty-side",
    "control-characters",
    "over-long",
    "bad-json",
    "missing-field",
    "not-text",
    "unpaired-line",
    "missing-file",
    "unreadable-file",
    "wrong-rate",
    "empty-file",
    "not-a-number",
    "unknown-label",
    "wrong-tags",
]
FAULTS: tuple[str, ...] = get_args(FaultKind)

FIELDS = ("source", "target")  # of a record, unless others are named
_BLOCK_BYTES = 1 << 18
_LONGEST_LINE_BYTES = 1 << 26
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Lone surrogates stand with the controls: JSON can write them ("\ud800"), UTF-8 and every tokenizer cannot.
_UNWANTED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UNWANTED_BUT_TAB = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")
# The same set in bytes, to clear a whole block at once; line feeds and tabs are the frame of the file.
_CONTROL_BYTES = bytes(byte for byte in (*range(0x20), 0x7F) if byte not in b"\t\n")
_CONTROL_PAIRS = re.compile(rb"\xc2[\x80-\x9f]")

Read = Callable[[int], bytes]


class Fault(NamedTuple):
    """A line that cannot be used, and why."""

    place: str
    kind: FaultKind
    detail: str

    def __str__(self) -> str:
        return f"{self.place}: {self.detail}"


class Example(NamedTuple):
    """A source and its references; the first reference is the training target."""

    source: str
    references: tuple[str, ...]
    path: str
    line: int
    tag: str = ""  # what the target is, where one model learns several
    at: str = ""  # where a recording or picture is read from; the source is then its name in the manifest
    word_lines: tuple[int, ...] = ()  # of every word, where each stands on a line of its own

    @property
    def tagged(self) -> str:
        """The source as a model reads it, its tag in front; of a recording or picture where it is read from."""
        if self.at:
            return self.at
        return tags.tagged(self.source, self.tag) if self.tag else self.source

    @property
    def place(self) -> str:
        """Where the example stands, as "path:line"; made on demand, since most are never asked for."""
        return f"{self.path}:{self.line}"

    def place_of_word(self, word: int) -> str:
        """Where a word of a sentence stands, counted from 0; that of the example where all are on one line."""
        return f"{self.path}:{self.word_lines[word]}" if self.word_lines else self.place


@dataclass(frozen=True)
class Pairs:
    """Where some pairs stand: two files in which line i of one answers line i of the other, or one file of both."""

    source: str | None = setting(None, help="a file of source lines")
    target: str | None = setting(None, help="a file of target lines, one for each source line")
    file: str | None = setting(None, help="in place of both: one file of pairs")
    tag: str | None = setting(None, help='what the targets are, such as "de", where one model learns several languages')

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        named = [name for name in ("source", "target", "file") if getattr(self, name) is not None]
        if named in (["source"], ["target"]):
            yield f"{'target' if named == ['source'] else 'source'}: missing; expected text"
        elif named not in (["source", "target"], ["file"]):
            yield f"found {', '.join(named) or 'no file'}, expected source and target, or file"
        if self.tag is not None and not tags.NAME.fullmatch(self.tag):
            yield f"tag: found {self.tag!r}, expected letters, digits, '.', '_' or '-', such as \"de\""

    @property
    def paths(self) -> tuple[str, ...]:
        """The one or two files."""
        return tuple(path for path in (self.source, self.target, self.file) if path is not None)


def read_pairs(
    path: str | Path | Pairs,
    *,
    columns: tuple[str, ...] = (),
    several_references: bool = False,
    max_characters: int = 10_000,
    header: bool = False,
    numbers: bool = False,
) -> Iterator[Example | Fault]:
    """The examples and faults of a file, in order; its suffix says the format (.tsv, .jsonl.gz, …).

    `columns` are 1-based numbers for tab-separated files and field names otherwise: source, target and, with
    `several_references`, more references. With a `header`, the first line of a tab-separated file names its columns,
    and `columns` may be these names. `numbers` in JSON are taken as if they were text, lists of them as one text. A
    missing file or a wrong setting raises at the call, not at the first item.
    """
    if isinstance(path, Pairs) and path.tag is not None:
        bare = replace(path, tag=None)
        items = read_pairs(
            bare, columns=columns, several_references=several_references, max_characters=max_characters, header=header
        )
        return _with_tag(items, path.tag)
    if isinstance(path, Pairs) and path.file is None:
        for name, found in (("columns", columns), ("header", header)):
            if found:
                raise ConfigError(f"{name}: found {found}, expected none for two line-parallel files")
        source, target = map(Path, path.paths)
        _check_file(source)
        _check_file(target)
        return _read_parallel(source, target, max_characters)
    path = Path(path.paths[0] if isinstance(path, Pairs) else path)
    if columns and (len(columns) < 2 or (len(columns) > 2 and not several_references)):
        wanted = "two or more" if several_references else "two"
        raise ConfigError(f"columns: found {columns}, expected {wanted} (source, target)")
    _check_file(path)
    form, compression = _form(path)
    fields = columns or FIELDS
    if header and form != "columns":
        raise ConfigError(f"header: found true for {path}, expected false: only tab-separated files have one")
    if form == "parquet":
        if compression:
            raise DataError(f"{path}: found Parquet inside {compression}, expected a plain .parquet file")
        return _read_parquet(path, fields, several_references, max_characters)
    if form == "jsonl":
        return _read_json(path, fields, several_references, max_characters, numbers)
    if header:
        named = _named_columns(path, columns)
        return _without_header(_read_columns(path, named, several_references, max_characters), path)
    return _read_columns(path, _column_numbers(path, columns), several_references, max_characters)


def _named_columns(path: Path, columns: tuple[str, ...]) -> tuple[int, ...]:
    """The numbers of columns that the first line of a file names; numbers stay what they are."""
    with _opened(path) as read:
        first = next(_text_blocks(read, str(path)), None)
    names = first.lines[0].split("\t") if first is not None else []
    numbers = []
    for column in columns:
        if column in names:
            numbers.append(names.index(column) + 1)
        elif column.isdigit():
            numbers += _column_numbers(path, (column,))
        else:
            match = nearest(column, names)
            better = f" Did you mean '{match}'?" if match else ""
            found = ", ".join(names) or "nothing"
            raise ConfigError(f"columns: found '{column}', but the first line of {path} names {found}.{better}")
    return tuple(numbers)


def _without_header(items: Iterable[Example | Fault], path: Path) -> Iterator[Example | Fault]:
    first = f"{path}:1"
    for number, item in enumerate(items):
        if number or item.place != first:
            yield item


def read_running(path: str | Path, *, max_characters: int = 10_000) -> Iterator[Example | Fault]:
    """Every line of a text, empty ones too, as what follows an empty source; plain, .gz or .zst."""
    path = Path(path)
    _check_file(path)
    if _form(path)[0] != "columns":
        raise DataError(f"{path}: found a file of fields, expected plain text for a language model")
    return _read_running(path, max_characters)


def _read_running(path: Path, limit: int) -> Iterator[Example | Fault]:
    def checked(line: str, number: int) -> Example:
        if line and not line.isspace():
            _check_side(line, "line", limit, _UNWANTED_BUT_TAB)
        return Example("", (line,), str(path), number)

    return each_line(path, checked)


Item = TypeVar("Item")


def each_line(path: Path, understood: Callable[[str, int], Item]) -> Iterator[Item | Fault]:
    """What is understood of every line and its number, or what is wrong with it."""
    name = str(path)
    with _opened(path) as read:
        for block in _text_blocks(read, name):
            for number, line in enumerate(block.lines, block.first):
                if number in block.faults:
                    yield block.faults[number]
                    continue
                try:
                    yield understood(line, number)
                except _FaultyError as fault:
                    yield Fault(f"{name}:{number}", fault.kind, fault.detail)


def _with_tag(items: Iterable[Example | Fault], tag: str) -> Iterator[Example | Fault]:
    for item in items:
        yield item if isinstance(item, Fault) else item._replace(tag=tag)


def read_lines(source: str | Path | BinaryIO | None) -> Iterator[str]:
    """The lines to predict from a file, a binary stream or standard input ("-" or None), empty ones included.

    A line is given as soon as it has arrived, so that a pipe can be answered line by line.
    """
    if isinstance(source, str | Path) and str(source) != "-":
        _check_file(Path(source))
        if _form(Path(source))[0] == "parquet":
            raise DataError(f"{source}: found Parquet, expected lines of text")
    return _read_lines(source)


def holds_objects(file: str | Path | None) -> bool:
    """Whether the lines of a file to predict are JSON, by its name."""
    return file is not None and _form(Path(file))[0] == "jsonl"


def _read_lines(source: str | Path | BinaryIO | None) -> Iterator[str]:
    if source is None or isinstance(source, str | Path):
        if source is None or str(source) == "-":
            yield from _plain_lines(_arriving(sys.stdin.buffer), "standard input")
        else:
            with _opened(Path(source), arriving=True) as read:
                yield from _plain_lines(read, str(source))
    else:
        yield from _plain_lines(_arriving(source), str(getattr(source, "name", "stream")))


def _plain_lines(read: Read, name: str) -> Iterator[str]:
    for block in _text_blocks(read, name):
        for number, line in enumerate(block.lines, block.first):
            if number in block.faults:
                raise DataError(str(block.faults[number]))
            yield line


# --- from bytes to lines


def _form(path: Path) -> tuple[Literal["columns", "jsonl", "parquet"], str]:
    """The format and the outer compression (".gz", ".zst" or "") that a file's name promises."""
    name = path.name.lower()
    compression = next((suffix for suffix in (".gz", ".zst") if name.endswith(suffix)), "")
    suffix = Path(name.removesuffix(compression)).suffix
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl", compression
    return ("parquet" if suffix == ".parquet" else "columns"), compression


def _check_file(path: Path) -> None:
    try:
        if path.is_dir():
            raise DataError(f"{path}: found a folder, expected a file")
        if path.exists():
            return
        if not path.parent.is_dir():
            raise DataError(f"{path}: no such file; the folder '{path.parent}' does not exist")
        match = nearest(path.name, (other.name for other in path.parent.iterdir()))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    raise DataError(f"{path}: no such file." + (f" Did you mean '{match}'?" if match else ""))


def _zstandard() -> Any:
    try:
        return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    except ImportError:
        raise MissingExtraError("reading .zst files", "backports.zstd", "data") from None


def _arriving(stream: Any) -> Read:
    """A read that gives what is there rather than waiting for a full block."""
    read: Read = getattr(stream, "read1", stream.read)
    return read


@contextmanager
def _opened(path: Path, arriving: bool = False) -> Iterator[Read]:
    """A way to read a file's bytes, decompressed; every failure becomes one line with its path."""
    compression = _form(path)[1]
    damage: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
    try:
        stream: Any
        if compression == ".gz":
            stream = gzip.GzipFile(path, "rb")
        elif compression == ".zst":
            module = _zstandard()
            damage = (*damage, module.ZstdError)
            stream = module.open(path, "rb")
        else:
            stream = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    with stream:
        raw = _arriving(stream) if arriving else stream.read

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
    """Runs of whole lines, the last newline of each run taken off."""
    start, held, parts = True, 0, list[bytes]()
    while data := read(_BLOCK_BYTES):
        cut = data.rfind(b"\n")
        if cut < 0:
            held += len(data)
            parts.append(data)
            # A binary file may have no newline at all: better to stop than to take it all into memory.
            if held > _LONGEST_LINE_BYTES:
                raise DataError(f"{name}: found a line of over {_LONGEST_LINE_BYTES} bytes, expected lines of text")
            continue
        block = b"".join((*parts, data[:cut]))
        yield block.removeprefix(_BYTE_ORDER_MARK) if start else block
        start, held, parts = False, len(data) - cut - 1, [data[cut + 1 :]]
    block = b"".join(parts)
    if start:
        block = block.removeprefix(_BYTE_ORDER_MARK)
    if block:
        yield block


class _Block(NamedTuple):
    first: int  # number of the first line
    lines: list[str]
    faults: dict[int, Fault]  # lines that are not UTF-8, by number; they stand in `lines` as ""
    clean: bool  # neither faults nor control characters


def _text_blocks(read: Read, name: str) -> Iterator[_Block]:
    """The lines in blocks: checking and decoding a whole block at once is what makes reading fast."""
    first = 1
    for block in _blocks(read, name):
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
        yield _Block(first, lines, faults, clean and not _CONTROL_PAIRS.search(block))
        first += len(lines)


# --- from lines to examples


class _FaultyError(Exception):
    """Carries a fault out of a nested check; the caller knows the place."""

    def __init__(self, kind: FaultKind, detail: str) -> None:
        super().__init__(detail)
        self.kind: FaultKind = kind
        self.detail = detail


def _check_side(text: str, side: str, max_characters: int, unwanted: re.Pattern[str] = _UNWANTED) -> None:
    # No control character is printable, and isprintable is several times faster than the search.
    if not text.isprintable() and (found := unwanted.search(text)):
        code, where = ord(found[0]), f"at offset {found.start()} of the {side}"
        if code >= 0xD800:
            raise _FaultyError("bad-utf8", f"found the lone surrogate U+{code:04X} {where}, expected whole characters")
        raise _FaultyError("control-characters", f"found U+{code:04X} {where}, expected no control characters")
    if not text or text.isspace():
        raise _FaultyError("empty-side", f"the {side} is empty, expected text")
    if len(text) > max_characters:
        raise _FaultyError("over-long", f"the {side} has {len(text)} characters, expected at most {max_characters}")


def _checked(source: str, references: Sequence[str], name: str, number: int, max_characters: int) -> Example:
    _check_side(source, "source", max_characters)
    _check_side(references[0] if references else "", "target", max_characters)
    if len(references) > 1:
        references = [references[0], *(text for text in references[1:] if text and not text.isspace())]
        for index, text in enumerate(references[1:], 2):
            _check_side(text, f"reference {index}", max_characters)
    return Example(source, tuple(references), name, number)


def _column_numbers(path: Path, columns: tuple[str, ...]) -> tuple[int, ...]:
    for column in columns:
        if not (column.isascii() and column.isdigit() and int(column) > 0):
            raise ConfigError(f"columns: found '{column}' for {path}, expected column numbers from 1")
    return tuple(int(column) for column in columns)


def _read_columns(path: Path, numbers: tuple[int, ...], several: bool, limit: int) -> Iterator[Example | Fault]:
    name = str(path)
    with _opened(path) as read:
        for block in _text_blocks(read, name):
            plain = block.clean and not numbers and not several
            for number, line in enumerate(block.lines, block.first):
                if plain:
                    source, _, target = line.partition("\t")
                    if (
                        source
                        and target
                        and len(line) <= limit
                        and "\t" not in target
                        and not source.isspace()
                        and not target.isspace()
                    ):
                        yield Example(source, (target,), name, number)
                        continue
                if number in block.faults:
                    yield block.faults[number]
                    continue
                try:
                    cells = _cells(line, numbers, several)
                    yield _checked(cells[0], cells[1:], name, number, limit)
                except _FaultyError as fault:
                    yield Fault(f"{name}:{number}", fault.kind, fault.detail)


def _cells(line: str, numbers: tuple[int, ...], several: bool) -> list[str]:
    cells = line.split("\t")
    least = max(numbers, default=2)
    if len(cells) >= least and (numbers or several or len(cells) == 2):
        return [cells[number - 1] for number in numbers] if numbers else cells
    if not line or line.isspace():
        raise _FaultyError("wrong-columns", "blank line")
    found = f"{len(cells)} column" + ("s" if len(cells) > 1 else "")
    expected = f"at least {least}" if numbers else "2 or more" if several else "2"
    tabs = " with a tab between them" if len(cells) == 1 else ""  # commas or spaces, most likely
    raise _FaultyError("wrong-columns", f"found {found}, expected {expected}{tabs}")


def _read_parallel(source: Path, target: Path, limit: int) -> Iterator[Example | Fault]:
    counts = [0, 0]
    unpaired = 0
    with _opened(source) as read_source, _opened(target) as read_target:
        streams = (_numbered(read_source, str(source)), _numbered(read_target, str(target)))
        for number, (left, right) in enumerate(zip_longest(*streams), 1):
            if left is None or right is None:
                unpaired = unpaired or number
                counts[right is not None] = number
                continue
            counts = [number, number]
            fault = left if isinstance(left, Fault) else right
            if isinstance(fault, Fault):
                yield fault
                continue
            assert isinstance(left, str)
            assert isinstance(right, str)
            name = str(source)
            try:
                _check_side(left, "source", limit, _UNWANTED_BUT_TAB)
                name = str(target)
                _check_side(right, "target", limit, _UNWANTED_BUT_TAB)
                yield Example(left, (right,), str(source), number)
            except _FaultyError as problem:
                yield Fault(f"{name}:{number}", problem.kind, problem.detail)
    if unpaired:
        longer = source if counts[0] > counts[1] else target
        detail = f"found {counts[0]} source lines and {counts[1]} target lines, expected as many of each"
        yield Fault(f"{longer}:{unpaired}", "unpaired-line", detail)


def _numbered(read: Read, name: str) -> Iterator[str | Fault]:
    for block in _text_blocks(read, name):
        if block.faults:
            yield from (block.faults.get(number, line) for number, line in enumerate(block.lines, block.first))
        else:
            yield from block.lines


def _read_json(
    path: Path, fields: tuple[str, ...], several: bool, limit: int, numbers: bool
) -> Iterator[Example | Fault]:
    def example(line: str, number: int) -> Example:
        values = _json_values(line, fields)
        if numbers:
            values = [_number_text(value) for value in values]
        return _from_values(values, fields, several, str(path), number, limit)

    return each_line(path, example)


def _json_values(line: str, fields: tuple[str, ...]) -> list[Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        blank = not line or line.isspace()
        raise _FaultyError("bad-json", "blank line" if blank else f"expected a JSON object: {error}") from None
    if not isinstance(record, dict):
        raise _FaultyError("bad-json", f"found {_kind(record)}, expected a JSON object")
    try:
        return [record[field] for field in fields]
    except KeyError:
        raise _FaultyError("missing-field", f"found the fields {_lacking(record, fields)}") from None


def _lacking(found: Iterable[str], fields: Sequence[str]) -> str:
    """What there is, and all that is missing; unless other names were asked for, that they can be."""
    names = list(found)
    shown = ", ".join(f"'{name}'" for name in names) or "none"
    missing = " and ".join(f"'{field}'" for field in dict.fromkeys(fields) if field not in names)
    unnamed = " (others are named by data.columns)" if tuple(fields) == FIELDS else ""
    return f"{shown}, expected {missing}{unnamed}"


def _number_text(value: Any) -> Any:
    """A number as text, a list of numbers as one text; anything else as it is."""
    if isinstance(value, list) and value and all(isinstance(_number_text(item), str) for item in value):
        return " ".join(_number_text(item) for item in value)
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")


def _from_values(
    values: Sequence[Any], fields: tuple[str, ...], several: bool, name: str, number: int, limit: int
) -> Example:
    source, *targets = values
    if isinstance(source, str) and len(targets) == 1 and isinstance(targets[0], str):
        return _checked(source, targets, name, number, limit)
    references: list[str] = []
    for field, value in zip(fields[1:], targets, strict=True):
        if several and isinstance(value, list):
            references.extend(_text(item, f"an item of '{field}'") for item in value)
        else:
            references.append(_text(value, f"'{field}'", " or a list of texts" if several else ""))
    return _checked(_text(source, f"'{fields[0]}'"), references, name, number, limit)


def _text(value: Any, what: str, otherwise: str = "") -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, UnicodeDecodeError):
        found = f"byte 0x{value.object[value.start]:02x} at offset {value.start}"
        raise _FaultyError("bad-utf8", f"found {found} of {what}, expected UTF-8")
    raise _FaultyError("not-text", f"{what} is {_kind(value)}, expected text{otherwise}")


def _read_parquet(path: Path, fields: tuple[str, ...], several: bool, limit: int) -> Iterator[Example | Fault]:
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtraError("reading Parquet files", "pyarrow", "data") from None
    name = str(path)
    rows = 0
    try:
        with parquet.ParquetFile(path) as file:
            _check_schema(file.schema_arrow, fields, several, name)
            for batch in file.iter_batches(batch_size=4096, columns=list(dict.fromkeys(fields))):
                columns = [_column_values(batch.column(field)) for field in fields]
                for number, values in enumerate(zip(*columns, strict=True), rows + 1):
                    try:
                        yield _from_values(values, fields, several, name, number, limit)
                    except _FaultyError as fault:
                        yield Fault(f"{name}:{number}", fault.kind, fault.detail)
                rows += batch.num_rows
    except (OSError, arrow.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{name}: cannot be read as Parquet ({reason})") from error


def _check_schema(schema: Any, fields: tuple[str, ...], several: bool, name: str) -> None:
    """A column that is missing or of another type is wrong in every row: say it once."""
    if not {*fields} <= {*schema.names}:
        raise DataError(f"{name}: found the columns {_lacking(schema.names, fields)}")
    for index, field in enumerate(fields):
        kind = schema.field(field).type
        inner = getattr(kind, "value_type", kind)
        lists = str(kind).startswith(("list", "large_list", "fixed_size_list"))
        if str(inner) in ("string", "large_string", "string_view") and (not lists or (several and index)):
            continue
        advice = " (several_references allows lists)" if lists and index and not several else ""
        raise DataError(f"{name}: column '{field}' holds {kind}, expected string{advice}")


def _column_values(column: Any) -> list[Any]:
    """A column as Python values; text that is not UTF-8 stands there as its error."""
    try:
        values: list[Any] = column.to_pylist()
        return values
    except UnicodeDecodeError:
        return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error
