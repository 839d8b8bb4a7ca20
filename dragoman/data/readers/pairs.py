"""Read text pairs: every line becomes an example or a fault with its location, in constant memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import BytesIO
from itertools import zip_longest
from pathlib import Path

from dragoman.data.examples import CONTROLS_EXCEPT_TAB, Example, Fault, FaultError, Pairs, check_text, make_example
from dragoman.data.readers.csv_files import read_csv
from dragoman.data.readers.lines import (
    Read,
    check_file,
    file_format,
    is_csv,
    numbered_lines,
    open_bytes,
    parse_lines,
    text_blocks,
)
from dragoman.data.readers.records import FIELDS, number_text, read_json, read_parquet, words_text
from dragoman.data.readers.tmx import is_tmx, read_tmx
from dragoman.errors import ConfigError, DataError, nearest

LARGE_FILE = 1 << 26  # bytes; of larger files `sample_pairs` reads blocks
SAMPLED_BLOCKS, SAMPLED_BYTES = 512, 1 << 14


def read_pairs(
    path: str | Path | Pairs,
    *,
    columns: tuple[str, ...] = (),
    several_references: bool = False,
    max_characters: int = 10_000,
    header: bool = False,
    numbers: bool = False,
    lists: bool = False,
) -> Iterator[Example | Fault]:
    """The examples and faults of a file, in order. Its suffix decides the format (.tsv, .jsonl.gz, …).

    `columns` are 1-based numbers for tab-separated files, languages for .tmx and field names otherwise: source, target
    and, with `several_references`, more references. With a `header`, the first line of a tab-separated file names its
    columns, and `columns` may be these names. With `numbers`, a JSON field may be a number or a list of numbers, with
    `lists` a list of words. A missing file or a wrong setting raises at the call, not at the first item.
    """
    if isinstance(path, Pairs) and path.tag is not None:
        bare = replace(path, tag=None)
        items = read_pairs(
            bare, columns=columns, several_references=several_references, max_characters=max_characters, header=header
        )
        return _with_tag(items, path.tag)
    if isinstance(path, Pairs) and path.file is None:
        for name, value in (("columns", columns), ("header", header)):
            if value:
                raise ConfigError(f"{name}: found {value}, expected none for two line-parallel files")
        source, target = map(Path, path.paths)
        check_file(source)
        check_file(target)
        return _read_parallel(source, target, max_characters)
    path = Path(path.paths[0] if isinstance(path, Pairs) else path)
    if columns and (len(columns) < 2 or (len(columns) > 2 and not several_references)):
        wanted = "two or more" if several_references else "two"
        raise ConfigError(f"columns: found {columns}, expected {wanted} (source, target)")
    check_file(path)
    format_, compression = file_format(path)
    fields = columns or FIELDS
    if is_csv(path):
        return read_csv(path, columns, several_references, max_characters, header)
    if is_tmx(path):
        return read_tmx(path, columns, max_characters)
    if header and format_ != "columns":
        raise ConfigError(f"data.header: found true for {path}, expected false: only tab-separated files have one")
    if format_ == "parquet":
        if compression:
            raise DataError(f"{path}: found Parquet inside {compression}, expected a plain .parquet file")
        return read_parquet(path, fields, several_references, max_characters)
    if format_ == "jsonl":
        convert = number_text if numbers else words_text if lists else None
        return read_json(path, fields, several_references, max_characters, convert)
    if header:
        named = columns_from_header(path, columns)
        return _without_header(_read_columns(path, named, several_references, max_characters), path)
    return _read_columns(path, column_numbers(path, columns), several_references, max_characters)


def columns_from_header(path: Path, columns: tuple[str, ...]) -> tuple[int, ...]:
    """Column names as numbers from 1, by the first line of a file; numbers stay as they are."""
    with open_bytes(path) as read:
        first = next(text_blocks(read, str(path)), None)
    names = first.lines[0].split("\t") if first is not None else []
    numbers = []
    for column in columns:
        if column in names:
            numbers.append(names.index(column) + 1)
        elif column.isdigit():
            numbers += column_numbers(path, (column,))
        else:
            match = nearest(column, names)
            suggestion = f" Did you mean '{match}'?" if match else ""
            found = ", ".join(names) or "nothing"
            raise ConfigError(f"columns: found '{column}', but the first line of {path} names {found}.{suggestion}")
    return tuple(numbers)


def _without_header(items: Iterable[Example | Fault], path: Path) -> Iterator[Example | Fault]:
    first = f"{path}:1"
    for number, item in enumerate(items):
        if number or item.location != first:
            yield item


def read_plain_text(path: str | Path, *, max_characters: int = 10_000) -> Iterator[Example | Fault]:
    """All lines of a text, empty ones too, as targets with an empty source; plain, .gz or .zst."""
    path = Path(path)
    check_file(path)
    if file_format(path)[0] != "columns":
        raise DataError(f"{path}: found a file of fields, expected plain text for a language model")
    return _read_plain_text(path, max_characters)


def _read_plain_text(path: Path, limit: int) -> Iterator[Example | Fault]:
    def parse(line: str, number: int) -> Example:
        if line and not line.isspace():
            check_text(line, "line", limit, CONTROLS_EXCEPT_TAB)
        return Example("", (line,), str(path), number)

    return parse_lines(path, parse)


def _with_tag(items: Iterable[Example | Fault], tag: str) -> Iterator[Example | Fault]:
    for item in items:
        yield item if isinstance(item, Fault) else item._replace(tag=tag)


def column_numbers(path: Path, columns: tuple[str, ...]) -> tuple[int, ...]:
    """Columns as numbers from 1; raises ConfigError for anything else."""
    for column in columns:
        if not (column.isascii() and column.isdigit() and int(column) > 0):
            raise ConfigError(f"columns: found '{column}' for {path}, expected column numbers from 1")
    return tuple(int(column) for column in columns)


def _read_columns(
    path: Path, numbers: tuple[int, ...], several_references: bool, limit: int
) -> Iterator[Example | Fault]:
    with open_bytes(path) as read:
        yield from _parse_columns(read, str(path), numbers, several_references, limit)


def _parse_columns(
    read: Read, name: str, numbers: tuple[int, ...], several_references: bool, limit: int
) -> Iterator[Example | Fault]:
    for block in text_blocks(read, name):
        plain = block.clean and not numbers and not several_references
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
                cells = _cells(line, numbers, several_references)
                yield make_example(cells[0], cells[1:], name, number, limit)
            except FaultError as fault:
                yield Fault(f"{name}:{number}", fault.kind, fault.detail)


def is_large(path: Path) -> bool:
    """Whether a file is a plain tab-separated one that is worth sampling."""
    plain = not is_csv(path) and not is_tmx(path) and file_format(path) == ("columns", "")
    return plain and path.is_file() and path.stat().st_size >= LARGE_FILE


def sample_pairs(
    path: Path, *, columns: tuple[str, ...] = (), max_characters: int = 10_000, header: bool = False
) -> tuple[int, list[Example]] | None:
    """How many lines a large tab-separated file has, and the pairs of blocks spread evenly over it.

    None for a file that should be read whole: a small one, one of another format, or one with many faulty lines.
    """
    if not is_large(path):
        return None
    size = path.stat().st_size
    lines, last, parts = 0, b"", list[bytes]()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            lines, last = lines + block.count(b"\n"), block[-1:]
        lines += last != b"\n"
        for number in range(SAMPLED_BLOCKS):
            start = number * size // SAMPLED_BLOCKS
            file.seek(start)
            block = file.read(SAMPLED_BYTES)
            parts.append(block[block.find(b"\n") + 1 if start else 0 : block.rfind(b"\n")])
    numbers = columns_from_header(path, columns) if header else column_numbers(path, columns)
    items = list(_parse_columns(BytesIO(b"\n".join(parts)).read, str(path), numbers, False, max_characters))
    examples = [item for item in items[header:] if isinstance(item, Example)]
    return (lines - header, examples) if 2 * len(examples) > len(items) else None


def _cells(line: str, numbers: tuple[int, ...], several_references: bool) -> list[str]:
    cells = line.split("\t")
    minimum = max(numbers, default=2)
    if len(cells) >= minimum and (numbers or several_references or len(cells) == 2):
        return [cells[number - 1] for number in numbers] if numbers else cells
    if not line or line.isspace():
        raise FaultError("wrong-columns", "blank line")
    found = f"{len(cells)} column" + ("s" if len(cells) > 1 else "")
    expected = f"at least {minimum}" if numbers else "2 or more" if several_references else "2"
    tabs = (
        " with a tab between them" if len(cells) == 1 else ""
    )  # the columns are probably separated by commas or spaces
    raise FaultError("wrong-columns", f"found {found}, expected {expected}{tabs}")


def _read_parallel(source: Path, target: Path, limit: int) -> Iterator[Example | Fault]:
    counts = [0, 0]
    unpaired = 0
    with open_bytes(source) as read_source, open_bytes(target) as read_target:
        streams = (numbered_lines(read_source, str(source)), numbered_lines(read_target, str(target)))
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
                check_text(left, "source", limit, CONTROLS_EXCEPT_TAB)
                name = str(target)
                check_text(right, "target", limit, CONTROLS_EXCEPT_TAB)
                yield Example(left, (right,), str(source), number)
            except FaultError as problem:
                yield Fault(f"{name}:{number}", problem.kind, problem.detail)
    if unpaired:
        longer = source if counts[0] > counts[1] else target
        detail = f"found {counts[0]} source lines and {counts[1]} target lines, expected as many of each"
        yield Fault(f"{longer}:{unpaired}", "unpaired-line", detail)
