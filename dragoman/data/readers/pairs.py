"""Read text pairs: every line becomes an example or a fault with its location, in constant memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from dragoman.base import ConfigError, DataError
from dragoman.data.examples import (
    CONTROLS_EXCEPT_TAB,
    Example,
    Fault,
    FaultError,
    Pairs,
    check_text,
    file_of,
    normalise,
)
from dragoman.data.readers.base import READERS, ReadOptions
from dragoman.data.readers.lines import WHOLE, check_file, numbered_lines, open_bytes, parse_lines

DEFAULTS = ReadOptions()


def pair_line(source: str, target: str, as_object: bool) -> str:
    """A line of a file of pairs, which `train` reads: a JSON object, or two columns without other tabs."""
    if as_object:
        return json.dumps({"source": source, "target": target}, ensure_ascii=False) + "\n"
    return "\t".join(text.replace("\t", " ") for text in (source, target)) + "\n"


def read_pairs(path: str | Path | Pairs, options: ReadOptions = DEFAULTS) -> Iterator[Example | Fault]:
    """The examples and faults of a file, in order, without blank lines at its end.

    The suffix decides the reader (.tsv, .jsonl.gz, …).

    A missing file or a wrong setting raises at the call, not at the first item.
    """
    items = _without_blank_end(_read(path, options))
    if isinstance(path, Pairs) and path.tag is not None:
        tag = path.tag
        return (item if isinstance(item, Fault) else item._replace(tag=tag) for item in items)
    return items


def _without_blank_end(items: Iterator[Example | Fault]) -> Iterator[Example | Fault]:
    """The items without faults of blank lines that nothing follows."""
    blank: list[Fault] = []
    for item in items:
        if isinstance(item, Fault) and item.kind == "blank-line":
            blank.append(item)
            continue
        yield from blank
        blank.clear()
        yield item


def _read(path: str | Path | Pairs, options: ReadOptions) -> Iterator[Example | Fault]:
    columns, file = options.columns, file_of(path)
    if file is None:
        assert isinstance(path, Pairs)
        attributes = [(f"{name}_column", column) for name, column in options.attributes.items()]
        for name, value in (("columns", columns), ("header", options.header), *attributes):
            if value:
                raise ConfigError(f"{name}: found {value}, expected none for two line-parallel files")
        source, target = map(Path, path.paths)
        check_file(source)
        check_file(target)
        return _read_parallel(source, target, options)
    if columns and (len(columns) < 2 or (len(columns) > 2 and not options.several_references)):
        wanted = "two or more" if options.several_references else "two"
        raise ConfigError(f"columns: found {', '.join(columns)}, expected {wanted} (source, target)")
    check_file(file)
    reader = READERS.of(file)
    for name, column in options.attributes.items():
        if not (columns := columns or reader.default_columns):
            raise ConfigError(f"{name}_column: found '{column}' for {file}, expected none: {reader.about} has none")
    return reader.pairs(file, replace(options, columns=(*columns, *options.attributes.values())))


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


def _read_parallel(source: Path, target: Path, options: ReadOptions) -> Iterator[Example | Fault]:
    limit, (first_span, second_span) = options.max_characters, options.spans or (WHOLE, WHOLE)
    first_line = first_span.line
    counts = [first_line - 1, first_line - 1]
    with open_bytes(source, span=first_span) as read_source, open_bytes(target, span=second_span) as read_target:
        lines = (
            numbered_lines(read_source, str(source), first_line),
            numbered_lines(read_target, str(target), first_line),
        )
        for number, (left, right) in enumerate(zip_longest(*lines), first_line):
            if (left is None or right is None) and not _has_text(left or right):
                continue  # blank lines at the end of the longer file
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
            if not _has_text(left) and not _has_text(right):
                yield Fault(f"{source}:{number}", "blank-line", "blank line")
                continue
            clean, other = normalise(first), normalise(second)
            try:
                check_text(clean, "source", limit, CONTROLS_EXCEPT_TAB)
                name = target
                check_text(other, "target", limit, CONTROLS_EXCEPT_TAB)
                changed = clean is not first or other is not second
                yield Example(clean, (other,), str(source), number, normalised=changed)
            except FaultError as problem:
                yield problem.at(f"{name}:{number}")
    if counts[0] != counts[1]:
        longer = source if counts[0] > counts[1] else target
        detail = f"found {counts[0]} source lines and {counts[1]} target lines, expected as many of each"
        yield Fault(f"{longer}:{min(counts) + 1}", "unpaired-line", detail)


def _has_text(line: tuple[int, str | Fault] | None) -> bool:
    """Whether a numbered line is not blank; one that is no UTF-8 is not."""
    return line is not None and (isinstance(line[1], Fault) or bool(line[1].strip()))
