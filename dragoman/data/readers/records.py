"""Records with named fields: JSON lines and Parquet."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dragoman.base import ConfigError, DataError, MissingExtraError
from dragoman.data.examples import Example, Fault, FaultError, FaultKind
from dragoman.data.readers.base import Reader, ReadOptions, ShardRow, SourceRow, compression_of, example_from
from dragoman.data.readers.lines import LineReader, SourceParser, parse_lines

FIELDS = ("source", "target")  # unless data.columns names others
BATCH = 1024  # rows of a Parquet file in memory


def check_header(path: Path, options: ReadOptions) -> None:
    if options.header:
        raise ConfigError(f"data.header: found true for {path}, expected false: only columns of a line have one")


def pair_fields(path: Path, options: ReadOptions) -> tuple[str, ...]:
    check_header(path, options)
    return options.columns or FIELDS


def source_fields(path: Path, options: ReadOptions) -> tuple[str, ...]:
    """The fields of a source; a run that was trained on numbered columns reads "source"."""
    check_header(path, options)
    return tuple(column for column in options.columns if not column.isdigit())[: options.texts] or FIELDS[:1]


class JsonReader(LineReader):
    """One JSON object on each line."""

    suffixes = (".jsonl", ".ndjson")
    about = "JSON lines"
    reads_spans = True
    default_columns = FIELDS

    def pairs(self, path: Path, options: ReadOptions) -> Iterator[Example | Fault]:
        fields = pair_fields(path, options)

        def parse(line: str, number: int) -> Example:
            values = [_converted(value, options) for value in _json_values(line, fields)]
            return example_of(values, fields, options, str(path), number)

        return parse_lines(path, parse, spans=options.spans)

    def source_parser(self, path: Path, options: ReadOptions) -> SourceParser:
        fields = source_fields(path, options)
        expected = " and ".join(f'a text "{field}"' for field in fields)

        def parse(line: str) -> SourceRow:
            if not line.strip():
                return SourceRow("")
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise FaultError("bad-json", f"found no JSON ({error})") from None
            if isinstance(record, str):
                return SourceRow(record)
            if not isinstance(record, dict):
                raise FaultError("bad-json", f"found {line[:60]!r}, expected an object with {expected}")
            texts = [number_text(_converted(record.get(field), options)) for field in fields]
            if not all(isinstance(text, str) for text in texts):
                found = ", ".join(f'"{key}"' for key in record) or "no field"
                raise FaultError(
                    "missing-field", f"found {found}, expected {expected} (data.columns names another field)"
                )
            return SourceRow("\t".join(texts), record)

        return parse, False


def _json_values(line: str, fields: tuple[str, ...]) -> list[Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        blank = not line or line.isspace()
        kind: FaultKind = "blank-line" if blank else "bad-json"
        raise FaultError(kind, "blank line" if blank else f"expected a JSON object: {error}") from None
    if not isinstance(record, dict):
        raise FaultError("bad-json", f"found {_kind(record)}, expected a JSON object")
    try:
        return [record[field] for field in fields]
    except KeyError:
        raise FaultError("missing-field", f"found the fields {_missing_fields(record, fields)}") from None


def _missing_fields(names: Iterable[str], fields: Sequence[str]) -> str:
    """The fields that a record has and those that are missing, for an error message."""
    names = list(names)
    shown = ", ".join(f"'{name}'" for name in names) or "none"
    missing = " and ".join(f"'{field}'" for field in dict.fromkeys(fields) if field not in names)
    hint = " (data.columns can name others)" if tuple(fields) == FIELDS else ""
    return f"{shown}, expected {missing}{hint}"


def _converted(value: Any, options: ReadOptions) -> Any:
    return number_text(value) if options.numbers else words_text(value) if options.lists else value


def source_text(value: Any, what: str, options: ReadOptions) -> str:
    """The text of a source field; numbers and words may be lists."""
    return _text(number_text(_converted(value, options)), what)


def number_text(value: Any) -> Any:
    """A number as text, a list of numbers as one text; any other value unchanged."""
    if isinstance(value, list) and value and all(isinstance(number_text(item), str) for item in value):
        return " ".join(number_text(item) for item in value)
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def words_text(value: Any) -> Any:
    """A list of words as one text, with a no-break space for a space inside a word; any other value unchanged."""
    if isinstance(value, list) and value and all(isinstance(item, str) and item.strip() for item in value):
        return " ".join(item.strip().replace(" ", "\u00a0") for item in value)
    return value


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")


def example_of(values: Sequence[Any], fields: Sequence[str], options: ReadOptions, name: str, number: int) -> Example:
    source, *targets = values
    if isinstance(source, str) and len(targets) == 1 and isinstance(targets[0], str):
        return example_from([source, *targets], options, name, number)
    references: list[str] = []
    for field, value in zip(fields[1:], targets, strict=True):
        if field in options.attributes.values():
            value = number_text(value)
        if options.several_references and isinstance(value, list):
            references.extend(_text(item, f"an item of '{field}'") for item in value)
        else:
            references.append(_text(value, f"'{field}'", " or a list of texts" if options.several_references else ""))
    return example_from([_text(source, f"'{fields[0]}'"), *references], options, name, number)


def _text(value: Any, what: str, otherwise: str = "") -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, UnicodeDecodeError):
        found = f"byte 0x{value.object[value.start]:02x} at offset {value.start}"
        raise FaultError("bad-utf8", f"found {found} of {what}, expected UTF-8")
    raise FaultError("not-text", f"{what} is {_kind(value)}, expected text{otherwise}")


class ParquetReader(Reader):
    """The columns of a Parquet file; a row group is a shard."""

    suffixes = (".parquet",)
    about = "Parquet"
    default_columns = FIELDS

    def pairs(self, path: Path, options: ReadOptions) -> Iterator[Example | Fault]:
        fields = pair_fields(path, options)
        if compression := compression_of(path):
            raise DataError(f"{path}: found Parquet inside {compression}, expected a plain .parquet file")
        return self._pairs(path, fields, options)

    def _pairs(self, path: Path, fields: tuple[str, ...], options: ReadOptions) -> Iterator[Example | Fault]:
        for number, values in parquet_rows(path, fields, options.several_references):
            try:
                yield example_of(values, fields, options, str(path), number + 1)
            except FaultError as fault:
                yield fault.at(f"{path}:{number + 1}")

    def sources(self, path: Path, options: ReadOptions) -> Iterator[SourceRow | Fault]:
        fields = source_fields(path, options)
        for number, values in parquet_rows(path, fields):
            try:
                yield _source_of(values, fields)._replace(line=number + 1)
            except FaultError as fault:
                yield fault.at(f"{path}:{number + 1}")

    def cut(self, path: Path, size: int) -> list[tuple[int, int]]:
        with parquet_file(path) as file:
            return [(number, number + 1) for number in range(file.num_row_groups)]

    def shard(self, path: Path, options: ReadOptions, start: int, end: int) -> Iterator[ShardRow]:
        fields = source_fields(path, options)
        for number, values in parquet_rows(path, fields, groups=range(start, end)):
            try:
                yield ShardRow(number, _source_of(values, fields))
            except FaultError as fault:
                yield ShardRow(number, None, fault.detail, str(values[0])[:200])


def _source_of(values: Sequence[Any], fields: Sequence[str]) -> SourceRow:
    texts = (_text(value, f"'{field}'") for field, value in zip(fields, values, strict=True))
    return SourceRow("\t".join(texts))


@contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """An open Parquet file; every failure inside is a DataError with the path."""
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtraError("reading Parquet files", "pyarrow", "documents") from None
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (OSError, UnicodeDecodeError, arrow.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: cannot be read as Parquet ({reason})") from error


def parquet_rows(
    path: Path, fields: tuple[str, ...], several_references: bool = False, groups: range | None = None
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """(number from 0, values of the fields) of all rows, or of those in some row groups."""
    with parquet_file(path) as file:
        _check_schema(file.schema_arrow, fields, several_references, str(path))
        first = sum(file.metadata.row_group(group).num_rows for group in range(groups.start)) if groups else 0
        chosen = {} if groups is None else {"row_groups": list(groups)}
        for batch in file.iter_batches(batch_size=BATCH, columns=list(dict.fromkeys(fields)), **chosen):
            columns = [_column_values(batch.column(field)) for field in fields]
            yield from enumerate(zip(*columns, strict=True), first)
            first += batch.num_rows


def _check_schema(schema: Any, fields: tuple[str, ...], several_references: bool, name: str) -> None:
    """Raise DataError once for a column that is missing or has a wrong type, since every row would be faulty."""
    if not {*fields} <= {*schema.names}:
        raise DataError(f"{name}: found the columns {_missing_fields(schema.names, fields)}")
    for index, field in enumerate(fields):
        kind = schema.field(field).type
        inner = getattr(kind, "value_type", kind)
        lists = str(kind).startswith(("list", "large_list", "fixed_size_list"))
        if str(inner) in ("string", "large_string", "string_view") and (not lists or (several_references and index)):
            continue
        advice = " (several_references allows lists)" if lists and index and not several_references else ""
        raise DataError(f"{name}: column '{field}' holds {kind}, expected string{advice}")


def _column_values(column: Any) -> list[Any]:
    """A column as Python values; a text that is not UTF-8 becomes its UnicodeDecodeError."""
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
