"""The inputs of commands: files of examples, read as the run read its own data unless settings differ."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.commands.printing import print_message, print_warning
from dragoman.config.settings import setting
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.media import files as media_files
from dragoman.data.readers.base import READERS, ReadOptions, SourceRow, suffix_of
from dragoman.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dragoman.data.config import DataConfig
    from dragoman.runs import Run

Command = Callable[..., Any]
FILES_NEEDED = "name either FILE or both --source and --target"
MANY_WORDS = 20  # lines of one word each that are hardly sentences


def pair_files(
    target: str = "Target", reason: str = FILES_NEEDED, among_words: bool = False, required: bool = False
) -> Callable[[Command], Command]:
    """Adds FILE, --source and --target to a command, which gets them as `files`: a path, two paths or None.

    With `among_words` FILE is one of the words of a `SettingsCommand`.
    """

    def add(function: Command) -> Command:
        @functools.wraps(function)
        def gathered(file: str | None, source: str | None, target: str | None, **given: Any) -> Any:
            if (file is not None and source is not None) or (source is None) != (target is None):
                raise DataError(reason)
            files = file if source is None or target is None else Pairs(source, target)
            if required and files is None:
                raise DataError(FILES_NEEDED)
            return function(files=files, **given)

        gathered = click.option("--target", help=f"{target} lines, one for each source line.")(gathered)
        gathered = click.option("--source", help="Source lines of a pair of parallel files.")(gathered)
        return gathered if among_words else click.argument("file", required=False)(gathered)

    return add


@dataclass(frozen=True)
class ReadingOptions:
    """How a command reads a file of examples; None: as the run read its own data."""

    columns: str | None = setting(None, help="columns of FILE, by number or name, as in 1,3")
    header: bool | None = setting(None, help="whether the first line of FILE names its columns")
    media: str | None = setting(None, help="folder or archive with the files that a manifest names")
    skip_unreadable: bool = setting(False, help="leave out and count recordings or pictures that cannot be read")

    def applied(self, data: DataConfig, files: str | Pairs) -> DataConfig:
        """The run's data settings changed by these options; a header is not expected where there can be none."""
        from dragoman.data.readers.conll import sentence_layout
        from dragoman.data.readers.header import header_warning

        parallel = isinstance(files, Pairs)
        if parallel and (self.columns is not None or self.header is not None):
            name = "columns" if self.columns is not None else "header"
            raise ConfigError(f"data.{name} goes with FILE, not with two files")
        names = data.columns if self.columns is None else tuple(name.strip() for name in self.columns.split(","))
        if not all(names):
            raise ConfigError(
                f"data.columns: found {self.columns!r}, expected numbers or names separated by commas, as in 1,3"
            )
        header = self.header
        if header is None:
            path = Path(str(files))
            columns = READERS.of(path).delimiter == "," or sentence_layout(path) == "columns"
            possible = data.header and not parallel and columns
            header = possible and begins_with_header(data, path)
            unexpected = not (header or possible or parallel) and names == data.columns and path.is_file()
            if unexpected and (warning := header_warning(path, "add data.header=true")):
                print_warning(warning)
        return replace(data, columns=() if parallel else names, header=header, media=self.media or data.media)


def begins_with_header(data: DataConfig, path: Path) -> bool:
    """Whether a file has a header as the training file has one; a first line of other words is read as data, and told.

    It is trusted to have one if columns have names, or if one of both files cannot be read now.
    """
    from dragoman.data.config import paths_of
    from dragoman.data.readers.columns import is_header

    files = (path, *map(Path, paths_of(data.train)))
    rows, *others = (READERS.of(file).first_rows(file) for file in files)
    trained = [cells[0] for cells in others if cells]
    named = any(not column.isdigit() for column in data.columns)
    if named or not rows or not trained or rows[0] in trained or is_header(rows[0]):
        return True
    print_warning(
        f"{path}:1 is not the header of the training file and is read as data; add data.header=true if it names the "
        "columns"
    )
    return False


def read_examples(
    run: Run,
    files: str | Pairs,
    kind: str,
    data: DataConfig | None = None,
    several_references: bool = False,
    purpose: str = "evaluate",
) -> list[Example]:
    """All examples of some files; none at all is an error, and so are more faulty lines than data.faults skips."""
    from dragoman.data.config import paths_of
    from dragoman.inference.evaluation import read_examples as read_all

    examples = read_all(run, files, several_references, data, print_warning)
    if not examples:
        raise DataError(f"{', '.join(paths_of(files))}: nothing to {purpose}: no {kind} was read")
    return examples


# --- sources without their references and labels


COLUMN_ADVICE = "; to read the first column alone add data.columns=1"


def read_sources(
    run: Run, file: str | None, reading: ReadingOptions, advice: str = COLUMN_ADVICE
) -> Iterator[SourceRow]:
    """The inputs of a file or of standard input, in order; mistakes in options raise at the call.

    The reader of the suffix finds the source as it does in training data: a column, a field, a side of a unit. In plain
    text, without `data.columns`, a whole line is a source.
    """
    from dragoman.data.readers.conll import CONLL_SUFFIXES, has_tagged_words
    from dragoman.inference.inputs import reads_tags, source_options

    name = "-" if file is None else file
    data = reading.applied(run.config.data, name)
    reader, tags = READERS.of(name), reads_tags(run)
    tabs = reader.table and reader.delimiter == "\t"
    if tags and (tabs or suffix_of(name) in CONLL_SUFFIXES or has_tagged_words(Path(name))):
        return read_sentences(run, data, name)
    options = source_options(run, data, table=reading.columns is not None or bool(reading.header))
    rows = usable(reader.sources(Path(name), options), name, options.columns)
    if reader.table or options.table:
        return rows
    return warn_of_single_words(warn_of_tabs(rows, run, advice)) if tags else warn_of_tabs(rows, run, advice)


def usable(rows: Iterator[SourceRow | Fault], name: str, fields: tuple[str, ...]) -> Iterator[SourceRow]:
    """The rows with their constraints; a faulty row is an error, since every row needs an answer."""
    from dragoman.inference.inputs import with_constraints

    for number, row in enumerate(rows, 1):
        if isinstance(row, Fault):
            raise DataError(str(row))
        yield with_constraints(row, fields, f"{name}:{number}") if row.record else row


def warn_of_single_words(sources: Iterator[SourceRow]) -> Iterator[SourceRow]:
    """The sources; a warning if each of many is a single word, since a tagger reads a sentence on each line."""
    single = 0
    for source in sources:
        single = single + 1 if len(source.text.split()) == 1 else -MANY_WORDS
        if single == MANY_WORDS:
            print_warning(
                "every line so far is a single word, and each is tagged alone; put a sentence on each line, or name "
                "the file .tsv and separate sentences by empty lines"
            )
        yield source


def warn_of_tabs(rows: Iterator[SourceRow], run: Run, advice: str) -> Iterator[SourceRow]:
    """The rows of plain text; one that looks like a row of columns is reported once, since it is read as one source."""
    from dragoman.data.config import paths_of
    from dragoman.inference.inputs import number_of_texts

    tabs = number_of_texts(run) > 1 or run.task.head_decoder is not None or len(paths_of(run.config.data.train)) > 1
    for number, row in enumerate(rows, 1):
        if not tabs and "\t" in row.text:
            tabs = True
            print_warning(f"input {number} has a tab and is read as one source, tab included{advice}")
        yield row


def read_sentences(run: Run, data: DataConfig, name: str) -> Iterator[SourceRow]:
    for item in run.task.example_format(run.config).read(data, name, False):
        if isinstance(item, Fault):
            raise DataError(f"{item}; to tag plain sentences put one on each line of a .txt file")
        yield SourceRow(item.source)


# --- recordings and pictures


def reads_files(run: Run) -> bool:
    """Whether the inputs of a run are recordings or pictures."""
    from dragoman.data.formats.media import MediaFormat

    return isinstance(run.task.example_format(run.config), MediaFormat)


def check_media_options(run: Run, reading: ReadingOptions) -> None:
    """Raise an error for settings that have no effect on text, and for a data.media that is no folder or archive."""
    for name, given in (("skip_unreadable", reading.skip_unreadable), ("media", reading.media is not None)):
        if given and not reads_files(run):
            raise ConfigError(f'data.{name} is for recordings and pictures; {run.folder} has task = "{run.task.name}"')
    if reading.media is not None:
        media_files.check_media_folder(reading.media, "data.media")


def named_locations(run: Run, file: str | None, media: str | None) -> Iterable[tuple[str, str]] | None:
    """(name, path) of all inputs, if `file` is a recording or picture, a folder, an archive or a manifest.

    A manifest has its own names. None: `file` is a list of paths, one per line.
    """
    name = file or "-"
    files = name != "-" and media_files.is_media(name)
    if READERS.of(name).table and not files:
        return manifest_locations(run.config.data, name, media)
    if media is not None:
        kind = "" if files or name == "-" else " (.tsv, .jsonl, …)"
        raise ConfigError(f"data.media is for manifests{kind}, found {'standard input' if name == '-' else name}")
    if not files:
        return None
    source = run.config.tokenizer.source
    if media_files.reads_folders(source):
        return ((path, path) for path in media_files.list_videos(name).paths)
    endings = media_files.AUDIO_SUFFIXES if source.kind == "audio" else media_files.IMAGE_SUFFIXES
    listed = media_files.list_media(name, endings)
    if listed.skipped:
        total = f"{listed.skipped + len(listed.paths):,}"
        print_message(
            f"{name}: {listed.skipped:,} of {total} files skipped, no {media_files.media_kind(endings)} by name"
        )
    return ((path, path) for path in listed.paths)


def manifest_locations(config: DataConfig, file: str, media: str | None) -> Iterator[tuple[str, str]]:
    """(name, path) for each row of a manifest: its source; other columns are ignored."""
    reader, base = READERS.of(file), media or config.media or str(Path(file).parent)
    columns = config.columns[:1]
    if reader.delimiter and not config.header and not all(map(str.isdigit, columns)):
        columns = ()  # a run trained on named fields reads the first column
    checked = bool(media) or not config.media
    for row in reader.sources(Path(file), ReadOptions(columns, config.header and bool(reader.delimiter))):
        if isinstance(row, Fault):
            raise DataError(str(row))
        if row.text and not checked and media_files.is_relative(row.text):
            media_files.check_media_folder(config.media, "data.media of the run (data.media=PATH names another)")
            checked = True
        yield row.text, media_files.resolve_path(base, row.text) if row.text else ""


def line_names(run: Run, file: str | None) -> Callable[[int], str]:
    """A function that names an input by its number: the line of a manifest or list, or "input N"."""
    if file is None or file == "-" or media_files.is_media(file):
        return "input {}".format
    reader = READERS.of(file)
    header = run.config.data.header and reader.table and bool(reader.delimiter)
    return lambda number: f"{file}:{number + header}"


def printable(name: str) -> str:
    """A file name as text: bytes that are not UTF-8 are replaced."""
    return name.encode("utf-8", "replace").decode()


def print_unreadable(faults: list[Any], consequence: str) -> None:
    """Print which inputs could not be read, and the consequence for the output."""
    for fault in faults[:3]:
        print_message(f"left out: {fault}")
    if len(faults) > 3:
        print_message(f"left out: (and {len(faults) - 3:,} more)")
    if faults:
        print_message(f"{len(faults):,} input{'s' * (len(faults) > 1)} could not be read; {consequence}")
