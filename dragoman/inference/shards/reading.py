"""The rows of one shard: lines of a byte range, or rows of a row group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dragoman.data.readers.lines import file_format
from dragoman.errors import DataError
from dragoman.inference.shards.plan import Job, Shard, is_parquet, parquet_file
from dragoman.inference.sources import Source, is_table, source_columns, source_fields, source_of_object, source_of_row
from dragoman.runs import Run

MAX_LINE = 1 << 20  # bytes; a longer line is a row that failed
BATCH = 1024  # rows of a row group in memory


class Row(NamedTuple):
    """A row of the input: its place, and its source or why it has none."""

    place: int  # first byte of a line, number of a Parquet row
    source: Source | None
    fault: str = ""
    shown: str = ""  # the beginning of a faulty row


def read_rows(job: Job, shard: Shard, run: Run) -> Iterator[Row]:
    """All rows of a shard, also faulty ones."""
    return _parquet_rows(job, shard, run) if is_parquet(Path(job.file)) else _lines(job, shard, run)


def _lines(job: Job, shard: Shard, run: Run) -> Iterator[Row]:
    from dataclasses import replace

    path = Path(job.file)
    data = replace(run.config.data, columns=job.columns, header=job.header)
    jsonl = file_format(path)[0] == "jsonl"
    table = not jsonl and is_table(job.file, job.named_columns)
    fields = source_fields(run, data) if jsonl else ()
    columns = source_columns(run, data, job.file) if table else ()
    for place, raw in byte_range_lines(path, shard.start, shard.end):
        if job.header and not place:
            continue
        shown = raw[:200].decode("utf-8", "replace")
        if len(raw) > MAX_LINE:
            yield Row(place, None, f"found a line of over {MAX_LINE:,} bytes, expected a sentence", shown)
            continue
        try:
            line = raw.decode()
            if jsonl:
                source = source_of_object(line, "row", fields) if line.strip() else Source("")
            else:
                source = source_of_row(line, "row", columns) if table else Source(line)
            yield Row(place, source)
        except UnicodeDecodeError as error:
            yield Row(place, None, f"found byte 0x{raw[error.start]:02x} at {error.start}, expected UTF-8", shown)
        except DataError as error:
            yield Row(place, None, str(error).removeprefix("row: "), shown)


def byte_range_lines(path: Path, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(first byte, line) of every line that begins in start … end−1; an over-long line is cut after MAX_LINE + 1."""
    with path.open("rb") as file:
        place = start
        if start:
            file.seek(start - 1)
            place = start - 1 + _skip_line(file)
        while place < end and (line := file.readline(MAX_LINE + 2)):
            size = len(line)
            if not line.endswith(b"\n") and size > MAX_LINE:
                size += _skip_line(file)
                yield place, line[: MAX_LINE + 1]
            else:
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                yield place, line.removeprefix(b"\xef\xbb\xbf") if not place else line
            place += size


def _skip_line(file: object) -> int:
    """Read to the end of a line; returns how many bytes."""
    size = 0
    while part := file.readline(1 << 16):  # type: ignore[attr-defined]
        size += len(part)
        if part.endswith(b"\n"):
            break
    return size


def _parquet_rows(job: Job, shard: Shard, run: Run) -> Iterator[Row]:
    from dataclasses import replace

    data = replace(run.config.data, columns=job.columns)
    fields = source_fields(run, data)
    with parquet_file(Path(job.file)) as file:
        missing = [field for field in fields if field not in file.schema_arrow.names]
        if missing:
            found = ", ".join(file.schema_arrow.names)
            raise DataError(f"{job.file}: found the columns {found}, expected '{missing[0]}' (--columns names another)")
        place = sum(file.metadata.row_group(group).num_rows for group in range(shard.start))
        for batch in file.iter_batches(BATCH, row_groups=range(shard.start, shard.end), columns=list(fields)):
            columns = [batch.column(field) for field in fields]
            for number in range(batch.num_rows):
                yield _parquet_row(place, [column[number] for column in columns], fields)
                place += 1


def _parquet_row(place: int, scalars: list[object], fields: tuple[str, ...]) -> Row:
    values = []
    for field, scalar in zip(fields, scalars, strict=True):
        try:
            value = scalar.as_py()  # type: ignore[attr-defined]
        except UnicodeDecodeError:
            return Row(place, None, f"'{field}' is not UTF-8")
        if value is None:
            return Row(place, None, f"'{field}' is null, expected text")
        if not isinstance(value, str):
            return Row(place, None, f"'{field}' is {type(value).__name__}, expected text", str(value)[:200])
        values.append(value)
    return Row(place, Source("\t".join(values)))
