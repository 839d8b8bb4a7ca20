"""Data that a Python user has in hand: paths, pairs, dicts, DataFrames, Arrow tables, Hugging Face datasets.

No package is imported for them: they are known by their documented methods. Rows are written once to a JSON lines file,
so that everything behind it (faults, hashes, resume, worker processes) is the one path that files take.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.base import DataError, DragomanError, cache_home, digest, suggestion
from dragoman.base.config import override
from dragoman.data.examples import Example, Fault, FaultError, Pairs
from dragoman.data.media.files import kind_by_name
from dragoman.data.readers.base import ReadOptions, SourceRow, column_names
from dragoman.data.readers.records import FIELDS, source_text

if TYPE_CHECKING:
    from dragoman.data.config import DataConfig, Files
    from dragoman.data.formats.base import ExampleFormat

ACCEPTED = (
    "a path, several paths, an iterable of pairs or dicts, a pandas or polars DataFrame, a pyarrow Table or a Hugging "
    "Face Dataset"
)
CHUNK = 4096  # rows of a DataFrame that are converted at once
NESTED = "translation"  # the field of a row {"translation": {"en": …, "de": …}}


class GivenRows(NamedTuple):
    """What the caller calls the rows of a file in the cache, and their fields."""

    argument: str
    row: Callable[[int], str]  # how the row of a number is called
    fields: Mapping[str, str]  # by their names in the file

    def in_words(self, text: str, path: str) -> str:
        """A message of the file at a path, in the caller's words."""

        def place(found: re.Match[str]) -> str:
            return self.argument + (f": {self.row(int(found[1]))}" if found[1] else "")

        def field(found: re.Match[str]) -> str:
            return f"'{self.fields.get(found[1], found[1])}'"

        return re.sub(r"'(\w+)'", field, re.sub(rf"{re.escape(path)}(?::(\d+))?", place, text))


_given_rows: ContextVar[dict[str, GivenRows] | None] = ContextVar("given_rows", default=None)


@contextmanager
def as_given() -> Iterator[None]:
    """Errors of rows in memory name them as the caller knows them, not by the file that they were written to."""
    token = _given_rows.set({})
    try:
        yield
    except DragomanError as error:
        error.args = tuple(in_callers_words(arg) if isinstance(arg, str) else arg for arg in error.args)
        raise
    finally:
        _given_rows.reset(token)


def in_callers_words(text: str) -> str:
    """A message with rows in memory for lines of files in the cache."""
    for path, given in (_given_rows.get() or {}).items():
        if path in text:
            text = given.in_words(text, path)
    return text


def row_names(data: Any) -> Callable[[int], str]:
    """What the rows of data are called: by their number from 1, those of a pandas DataFrame also by their index."""
    if hasattr(data, "iloc") and hasattr(data, "index"):
        return lambda number: f"row {number} (index {data.index[number - 1]})"
    return "row {}".format


def as_training_data(data: Any, overrides: Sequence[str] = (), argument: str = "data") -> Files:
    """What `data.train` may be for this data: paths as they are, rows as a file in the cache, named by its content.

    `overrides` are settings as for `dragoman train`; of them `data.columns` names the fields of a row. `argument` is
    the data's name in messages.
    """
    if (files := files_of(data)) is not None:
        return files
    given = override({}, list(overrides)).get("data", {})
    columns = column_names(given.get("columns", ())) if isinstance(given, Mapping) else ()
    folder = cache_home() / "rows"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as temporary:
        path, _, renamed = _write_rows(data, Path(temporary), columns, argument=argument)
        final = folder / f"{digest(path)}{path.suffix}"
        path.replace(final)
    if (known := _given_rows.get()) is not None:
        known[str(final)] = GivenRows(argument, row_names(data), renamed)
    return str(final)


def examples_of(data: Any, config: DataConfig, example_format: ExampleFormat) -> list[Example]:
    """The examples of data for a run with these settings; a faulty row is an error, since scores need all rows."""
    if (files := files_of(data)) is not None:
        from dragoman.data.config import file_list

        items = [item for entry in file_list(files) for item in example_format.read(config, entry, True)]
    else:
        with tempfile.TemporaryDirectory(prefix="dragoman-rows-") as folder:
            path, names, _ = _write_rows(data, Path(folder), (), config.columns, several_references=True)
            read = replace(config, columns=names, header=False)
            items = [_in_memory(item, row_names(data)) for item in example_format.read(read, str(path), True)]
    for item in items:
        if isinstance(item, Fault):
            raise DataError(str(item))
    return [item for item in items if isinstance(item, Example)]


def source_rows(data: Any, options: ReadOptions) -> Iterator[SourceRow | Fault]:
    """The sources of data: texts as they are, and the source of each row with its other fields.

    `options.columns` are those of a run; rows without them have "source", or their first field is the source.
    """
    fields: tuple[str, ...] = ()
    called = row_names(data)
    for number, row in enumerate(rows_of(data, f"an iterable of texts, or {ACCEPTED}"), 1):
        if isinstance(row, str):
            yield SourceRow(row, line=number)
            continue
        place = f"data: {called(number)}"
        record = _record(row, place)
        if not fields:
            fields = tuple(name for name in options.columns[: options.texts] if name in record)
            fields = fields or (FIELDS[:1] if FIELDS[0] in record else _fields(row, record, (), (), False))
            fields = fields[: options.texts]
        try:
            values = ((field, _json_value(_value(record, field, place), place, field)) for field in fields)
            texts = [source_text(value, f"'{field}'", options) for field, value in values]
        except FaultError as fault:
            yield fault.at(called(number))
            continue
        others = {str(key): _plain(value) for key, value in record.items()} if isinstance(row, Mapping) else {}
        yield SourceRow("\t".join(texts), others, number)


def files_of(data: Any) -> Files | None:
    """The files that paths name; None for rows."""
    if isinstance(data, str | Path):
        return str(data)
    if isinstance(data, Pairs):
        return data
    if isinstance(data, list | tuple) and data and all(isinstance(entry, str | Path | Pairs) for entry in data):
        return tuple(str(entry) if isinstance(entry, Path) else entry for entry in data)
    return None


def rows_of(data: Any, accepted: str = ACCEPTED) -> Iterator[Any]:
    """The rows of data, as they come: dicts or sequences."""
    if isinstance(data, Mapping):  # a DatasetDict has a Dataset for each split
        parts = ", ".join(repr(name) for name in list(data)[:5])
        raise TypeError(f"data: found {_type(data)} with {parts}, expected {accepted}; name one part, as data['train']")
    if hasattr(data, "iter_rows"):  # polars
        return iter(data.iter_rows(named=True))
    if hasattr(data, "iloc") and hasattr(data, "columns"):  # a pandas DataFrame; a Series is iterable
        chunks: Iterable[Any] = (data.iloc[first : first + CHUNK] for first in range(0, len(data), CHUNK))
        return (row for chunk in chunks for row in chunk.to_dict("records"))
    if hasattr(data, "to_batches"):  # pyarrow
        return (row for batch in data.to_batches(CHUNK) for row in batch.to_pylist())
    if hasattr(data, "to_pylist"):  # a column of pyarrow, whose items are no Python values
        return iter(data.to_pylist())
    if not isinstance(data, Iterable) or isinstance(data, str | bytes):
        raise TypeError(f"data: found {_type(data)}, expected {accepted}")
    return iter(data)


def _write_rows(
    data: Any,
    folder: Path,
    columns: tuple[str, ...],
    usual: tuple[str, ...] = (),
    several_references: bool = False,
    argument: str = "data",
) -> tuple[Path, tuple[str, ...], dict[str, str]]:
    """Write a file with the rows of data; returns it, `data.columns` for it, and the fields by the names there.

    `columns` must be fields of the rows, `usual` may be. Rows of one field become lines of plain text.
    """
    rows, called = enumerate(rows_of(data), 1), row_names(data)
    number, row = next(rows, (0, None))
    if not number:
        raise DataError(f"{argument}: found no rows, expected one or more")
    fields = _fields(row, _record(row, f"{argument}: {called(1)}"), columns, usual, several_references, argument)
    names = FIELDS if len(fields) == 2 and fields not in (columns, usual) else fields
    path = folder / f"rows{'.jsonl' if len(fields) > 1 else '.txt'}"
    with path.open("w", encoding="utf-8", errors="surrogatepass", newline="\n") as file:
        while number:
            place = f"{argument}: {called(number)}"
            record = _record(row, place)
            values = [_json_value(_value(record, field, place), place, field) for field in fields]
            if len(fields) > 1:
                values[0] = _media_path(values[0])
                file.write(json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=False) + "\n")
            else:
                file.write(f"{values[0]}\n")
            number, row = next(rows, (0, None))
    return path, names if columns or names != FIELDS else (), dict(zip(names, fields, strict=True))


def _record(row: Any, place: str) -> Mapping[str, Any]:
    """A row by its fields; those of a sequence are numbers from 1, those of a nested translation its languages."""
    if hasattr(row, "tolist"):  # a row of a numpy array
        row = row.tolist()
    if isinstance(row, Mapping):
        nested = row.get(NESTED)
        return {**row, **nested} if isinstance(nested, Mapping) else row
    if isinstance(row, Sequence) and not isinstance(row, str | bytes):
        return {str(place): value for place, value in enumerate(row, 1)}
    raise TypeError(f"{place}: found {_type(row)}, expected a pair or a dict")


def _fields(
    row: Any,
    record: Mapping[str, Any],
    columns: tuple[str, ...],
    usual: tuple[str, ...],
    several_references: bool,
    argument: str = "data",
) -> tuple[str, ...]:
    """The fields of source and target, by the first row."""
    for column in columns:
        if column not in record:
            match = suggestion(column, map(str, record))
            raise DataError(f"{argument}: row 1: found the fields {named(record)}, expected '{column}'{match}")
    if columns:
        return columns
    for names in (usual, FIELDS):
        if names and all(name in record for name in names):
            return names
    nested = row.get(NESTED) if isinstance(row, Mapping) else None
    names = tuple(nested if isinstance(nested, Mapping) else record)
    if not names or (len(names) > 2 and not (several_references and not isinstance(row, Mapping))):
        raise DataError(
            f"{argument}: row 1: found the fields {named(record)}, expected 'source' and 'target', or two fields; "
            'choose them, as in data.columns=["2", "3"]'
        )
    return names


def named(record: Iterable[Any]) -> str:
    """The fields of a row as messages list them: the first twelve."""
    names = [f"'{name}'"[:60] for name in record]
    return (", ".join(names[:12]) or "none") + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _value(record: Mapping[str, Any], field: str, place: str) -> Any:
    try:
        return record[field]
    except KeyError:
        raise DataError(f"{place}: found the fields {named(record)}, expected '{field}' as in row 1") from None


def _plain(value: Any) -> Any:
    """A value without numpy; NaN and NA, which pandas has for a missing value, are None."""
    if not isinstance(value, str) and hasattr(value, "tolist"):
        value = value.tolist()
    missing = type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    return None if missing else value


def _json_value(value: Any, place: str, field: str) -> Any:
    """A value as JSON has it."""
    if (value := _plain(value)) is None:
        return None
    if isinstance(value, list | tuple):
        return [_json_value(item, place, field) for item in value]
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{place}: found {_type(value)} as '{field}', expected text, a number or a list of them")


def _media_path(value: Any) -> Any:
    """A name of a recording or picture in the current folder as a full path: the file of rows lies elsewhere."""
    media = isinstance(value, str) and kind_by_name(value) and Path(value).is_file()
    return str(Path(value).absolute()) if media else value


def _in_memory(item: Example | Fault, called: Callable[[int], str]) -> Example | Fault:
    """The same with the row as its place."""
    if isinstance(item, Fault):
        return item._replace(location=called(int(item.location.rpartition(":")[2])))
    return item._replace(path="row")


def _type(value: Any) -> str:
    name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"{name} {value!r}"[:80] if isinstance(value, str | bytes | int | float) else name
