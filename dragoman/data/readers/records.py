"""Read examples from records with named fields: JSON lines and Parquet."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dragoman.data.examples import Example, Fault, FaultError, make_example
from dragoman.data.readers.lines import parse_lines
from dragoman.errors import DataError, MissingExtraError

FIELDS = ("source", "target")  # unless data.columns names others


def read_json(
    path: Path,
    fields: tuple[str, ...],
    several_references: bool,
    limit: int,
    convert: Callable[[Any], Any] | None = None,
) -> Iterator[Example | Fault]:
    """The examples and faults of JSON lines; `convert` turns the value of a field into text where it can."""

    def example(line: str, number: int) -> Example:
        values = _json_values(line, fields)
        if convert is not None:
            values = [convert(value) for value in values]
        return _from_values(values, fields, several_references, str(path), number, limit)

    return parse_lines(path, example)


def _json_values(line: str, fields: tuple[str, ...]) -> list[Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        blank = not line or line.isspace()
        raise FaultError("bad-json", "blank line" if blank else f"expected a JSON object: {error}") from None
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


def _from_values(
    values: Sequence[Any], fields: tuple[str, ...], several_references: bool, name: str, number: int, limit: int
) -> Example:
    source, *targets = values
    if isinstance(source, str) and len(targets) == 1 and isinstance(targets[0], str):
        return make_example(source, targets, name, number, limit)
    references: list[str] = []
    for field, value in zip(fields[1:], targets, strict=True):
        if several_references and isinstance(value, list):
            references.extend(_text(item, f"an item of '{field}'") for item in value)
        else:
            references.append(_text(value, f"'{field}'", " or a list of texts" if several_references else ""))
    return make_example(_text(source, f"'{fields[0]}'"), references, name, number, limit)


def _text(value: Any, what: str, otherwise: str = "") -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, UnicodeDecodeError):
        found = f"byte 0x{value.object[value.start]:02x} at offset {value.start}"
        raise FaultError("bad-utf8", f"found {found} of {what}, expected UTF-8")
    raise FaultError("not-text", f"{what} is {_kind(value)}, expected text{otherwise}")


def read_parquet(
    path: Path, fields: tuple[str, ...], several_references: bool, limit: int
) -> Iterator[Example | Fault]:
    """The examples and faults of a Parquet file."""
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtraError("reading Parquet files", "pyarrow", "data") from None
    name = str(path)
    rows = 0
    try:
        with parquet.ParquetFile(path) as file:
            _check_schema(file.schema_arrow, fields, several_references, name)
            for batch in file.iter_batches(batch_size=4096, columns=list(dict.fromkeys(fields))):
                columns = [_column_values(batch.column(field)) for field in fields]
                for number, values in enumerate(zip(*columns, strict=True), rows + 1):
                    try:
                        yield _from_values(values, fields, several_references, name, number, limit)
                    except FaultError as fault:
                        yield Fault(f"{name}:{number}", fault.kind, fault.detail)
                rows += batch.num_rows
    except (OSError, UnicodeDecodeError, arrow.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{name}: cannot be read as Parquet ({reason})") from error


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
