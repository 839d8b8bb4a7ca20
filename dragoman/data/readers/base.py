"""READERS: the suffix of a file decides how its pairs, its sources and its header are read.

Training, `check`, `evaluate`, `predict`, shards, `clean` and the automatic choice all look files up in this table. A
new format is one subclass of `Reader` and one `dragoman.register(...)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from dragoman.base import DataError
from dragoman.base.config import Table
from dragoman.data.examples import Example, Fault, FaultError, make_example
from dragoman.data.tokenizers.language_tags import TAG_NAME

COMPRESSIONS = (".gz", ".zst")


class LineSpan(NamedTuple):
    """Consecutive lines of a file that is not compressed, for one of the processes that share its reading."""

    line: int  # number of the first line, from 1
    start: int  # its first byte
    end: int | None  # the byte after the last line; None: the end of the file


@dataclass(frozen=True)
class ReadOptions:
    """How to read a file: the settings under `data` that concern its layout, and what the task expects of a value."""

    columns: tuple[str, ...] = ()  # numbers from 1, names in a header or of fields, or languages; empty: the usual ones
    header: bool = False  # the first line names the columns
    several_references: bool = False  # a pair may have more references after the first
    max_characters: int = 10_000  # a longer text is a fault
    numbers: bool = False  # a JSON field may be a number or a list of numbers
    lists: bool = False  # a JSON field may be a list of words
    texts: int = 1  # of a source: a classifier of text pairs reads two
    table: bool = False  # lines have columns, also where the suffix does not say so
    tag_column: str = ""  # the column with the tag of each pair
    document_column: str = ""  # the column that names the document of each pair
    spans: tuple[LineSpan, ...] = ()  # the lines to read of each file; none: all

    @property
    def attributes(self) -> dict[str, str]:
        """The columns after those of the texts, by the field of an example that they fill."""
        named = {"tag": self.tag_column, "document": self.document_column}
        return {name: column for name, column in named.items() if column}

    @property
    def of_sources(self) -> ReadOptions:
        """The same without the columns of targets, which a file of inputs need not have."""
        return replace(self, columns=self.columns[: self.texts])


class SourceRow(NamedTuple):
    """The source of one row, and the JSON object that it came from."""

    text: str
    record: Mapping[str, Any] = {}
    line: int = 0  # of the file, from 1; 0: the reader does not say


class ShardRow(NamedTuple):
    """A row of a shard: its source, or why it has none."""

    place: int  # first byte of a line, number of a row
    source: SourceRow | None
    fault: str = ""
    shown: str = ""  # the start of a faulty row


class Reader(ABC):
    """Reads the files of some suffixes. A missing file or a wrong setting raises at the call, not at the first item."""

    suffixes: ClassVar[tuple[str, ...]]  # in lower case, such as ".tsv"; also read behind .gz and .zst
    about: ClassVar[str]  # for messages and documentation
    delimiter: ClassVar[str] = ""  # between the columns of a line, whose first one may be a header
    lines: ClassVar[bool] = False  # whether a row is a line of text
    reads_spans: ClassVar[bool] = False  # whether `pairs` heeds options.spans
    table: ClassVar[bool] = True  # whether rows have several fields, so that a line as a whole is no source
    default_columns: ClassVar[tuple[str, ...]] = ()  # of source and target; none where rows have no further columns

    @abstractmethod
    def pairs(self, path: Path, options: ReadOptions) -> Iterator[Example | Fault]:
        """The examples and faults of a file, in order."""

    def sources(self, path: Path, options: ReadOptions) -> Iterator[SourceRow | Fault]:
        """The sources alone, for prediction; a reader that needs no targets for them overrides this."""
        for item in self.pairs(path, replace(options, several_references=options.texts > 1)):
            if isinstance(item, Fault):
                yield item
            else:
                yield SourceRow("\t".join((item.source, *item.references)[: options.texts]), line=item.line)

    def first_rows(self, path: Path) -> list[list[str]]:
        """The cells of the first lines, where one may be a header; none if they cannot be read now."""
        return []

    def skips_header(self, cells: list[str]) -> bool:
        """Whether the reader leaves out a first row of these cells, though nobody said that it is a header."""
        return False

    def sample(self, path: Path, options: ReadOptions) -> tuple[int, list[Example]] | None:
        """The number of rows and pairs spread evenly over a large file; None: read it whole."""
        return None

    def cut(self, path: Path, size: int) -> list[tuple[int, int]]:
        """Where to cut a file into shards of about `size` bytes: first place, and the place after the last."""
        raise DataError(
            f"{path}: found {self.suffixes[0]}, which cannot be cut into shards; write it as .tsv or .parquet first"
        )

    def shard(self, path: Path, options: ReadOptions, start: int, end: int) -> Iterator[ShardRow]:
        """All rows of a shard, also faulty ones."""
        raise NotImplementedError


def example_from(cells: Sequence[str], options: ReadOptions, path: str, line: int) -> Example:
    """An example of the chosen cells: source, targets, then the attributes; raises FaultError."""
    if not (attributes := options.attributes):
        return make_example(cells[0], cells[1:], path, line, options.max_characters)
    texts, others = cells[: -len(attributes)], cells[-len(attributes) :]
    values = dict(zip(attributes, (text.strip() for text in others), strict=True))
    if "tag" in values and not TAG_NAME.fullmatch(values["tag"]):
        found = f"{values['tag']!r} in column {options.tag_column} (data.tag_column)"
        raise FaultError("wrong-tags", f"found {found}, expected letters, digits, '.', '_' or '-'")
    example = make_example(texts[0], texts[1:], path, line, options.max_characters)
    return example._replace(tag=values.get("tag", ""), document=values.get("document", ""))


def column_names(columns: Any) -> tuple[str, ...]:
    """The names of columns in a list, or in a text with commas between them."""
    columns = columns.split(",") if isinstance(columns, str) else columns
    return tuple(str(name).strip() for name in (columns if isinstance(columns, list | tuple) else [columns]))


class Readers(Table[str, Reader]):
    """Readers by suffix. The one of "" reads files of any other suffix."""

    def of(self, path: Any, /) -> Reader:
        return self.get(suffix_of(path)) or self[""]


READERS = Readers("reader of", lambda reader: reader.suffixes, ())  # filled in __init__.py: readers consult it, too


def compression_of(path: str | Path) -> str:
    """ ".gz", ".zst" or "", by the suffix of a file."""
    name = Path(path).name.lower()
    return next((suffix for suffix in COMPRESSIONS if name.endswith(suffix)), "")


def suffix_of(path: str | Path) -> str:
    """The suffix of a file without that of its compression, in lower case."""
    return Path(Path(path).name.lower().removesuffix(compression_of(path))).suffix
