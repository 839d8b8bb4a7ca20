"""Read text pairs: every line becomes an example or a fault with its location, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from dragoman.data.examples import CONTROLS_EXCEPT_TAB, Example, Fault, FaultError, Pairs, check_text, file_of
from dragoman.data.readers.base import READERS, ReadOptions
from dragoman.data.readers.lines import check_file, numbered_lines, open_bytes, parse_lines
from dragoman.errors import ConfigError, DataError

DEFAULTS = ReadOptions()


def read_pairs(path: str | Path | Pairs, options: ReadOptions = DEFAULTS) -> Iterator[Example | Fault]:
    """The examples and faults of a file, in order. The suffix decides the reader (.tsv, .jsonl.gz, …).

    A missing file or a wrong setting raises at the call, not at the first item.
    """
    if isinstance(path, Pairs) and path.tag is not None:
        tag, items = path.tag, _read(path, options)
        return (item if isinstance(item, Fault) else item._replace(tag=tag) for item in items)
    return _read(path, options)


def _read(path: str | Path | Pairs, options: ReadOptions) -> Iterator[Example | Fault]:
    columns, file = options.columns, file_of(path)
    if file is None:
        assert isinstance(path, Pairs)
        for name, value in (("columns", columns), ("header", options.header)):
            if value:
                raise ConfigError(f"{name}: found {value}, expected none for two line-parallel files")
        source, target = map(Path, path.paths)
        check_file(source)
        check_file(target)
        return _read_parallel(source, target, options.max_characters)
    if columns and (len(columns) < 2 or (len(columns) > 2 and not options.several_references)):
        wanted = "two or more" if options.several_references else "two"
        raise ConfigError(f"columns: found {columns}, expected {wanted} (source, target)")
    check_file(file)
    return READERS.of(file).pairs(file, options)


def read_plain_text(path: Path, max_characters: int) -> Iterator[Example | Fault]:
    """All lines of a text, empty ones too, as targets with an empty source; plain, .gz or .zst."""
    check_file(path)
    if not READERS.of(path).delimiter:
        raise DataError(f"{path}: found a file of fields, expected plain text for a language model")

    def parse(line: str, number: int) -> Example:
        if line and not line.isspace():
            check_text(line, "line", max_characters, CONTROLS_EXCEPT_TAB)
        return Example("", (line,), str(path), number)

    return parse_lines(path, parse)


def _read_parallel(source: Path, target: Path, limit: int) -> Iterator[Example | Fault]:
    counts = [0, 0]
    with open_bytes(source) as read_source, open_bytes(target) as read_target:
        lines = numbered_lines(read_source, str(source)), numbered_lines(read_target, str(target))
        for number, (left, right) in enumerate(zip_longest(*lines), 1):
            counts = [counts[0] + (left is not None), counts[1] + (right is not None)]
            if left is None or right is None:
                continue
            name, first, second = source, left[1], right[1]
            fault = first if isinstance(first, Fault) else second
            if isinstance(fault, Fault):
                yield fault
                continue
            assert isinstance(first, str)
            assert isinstance(second, str)
            try:
                check_text(first, "source", limit, CONTROLS_EXCEPT_TAB)
                name = target
                check_text(second, "target", limit, CONTROLS_EXCEPT_TAB)
                yield Example(first, (second,), str(source), number)
            except FaultError as problem:
                yield problem.at(f"{name}:{number}")
    if counts[0] != counts[1]:
        longer = source if counts[0] > counts[1] else target
        detail = f"found {counts[0]} source lines and {counts[1]} target lines, expected as many of each"
        yield Fault(f"{longer}:{min(counts) + 1}", "unpaired-line", detail)
