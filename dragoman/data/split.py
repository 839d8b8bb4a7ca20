"""Read the usable examples of a corpus, say which lines cannot be used, and split training and validation data."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.data.config import DataConfig, Files, file_list, paths_of, tag_of
from dragoman.data.examples import Example, Fault
from dragoman.data.formats.base import ExampleFormat
from dragoman.data.formats.pairs import PAIR_FORMAT
from dragoman.errors import DataError, hint

PROGRESS_EVERY = 20_000
MAX_KEPT = 20_000  # validation examples that are kept in memory, so that nobody reads the files again for them
MAX_FAULTS = 100  # readers keep this many faults for messages
FEW = 1000  # data.faults = "few" skips at most one line in so many
# A line with too many columns in a format of two columns, for which data.columns can choose others.
_EXTRA_COLUMNS = re.compile("found ([0-9]+) columns, expected 2(?! or)")
Progress = Callable[[str, int], None]  # (what is being done, how many examples so far)


@dataclass
class LineCounts:
    """What was read of some files: all lines, those that cannot be used, and those that were normalised."""

    lines: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    first: list[Fault] = field(default_factory=list)  # up to MAX_FAULTS
    normalised: int = 0

    def add(self, item: Example | Fault) -> None:
        self.lines += 1
        if isinstance(item, Example):
            self.normalised += item.normalised
            return
        self.faults[item.kind] += 1
        if len(self.first) < MAX_FAULTS:
            self.first.append(item)

    def __add__(self, other: LineCounts) -> LineCounts:
        first = [*self.first, *other.first][:MAX_FAULTS]
        return LineCounts(
            self.lines + other.lines, self.faults + other.faults, first, self.normalised + other.normalised
        )

    def tolerated(self, faults: str) -> bool:
        """Whether data.faults lets training go on; a line without a partner may mean that no pair belongs together."""
        few = self.faults.total() * FEW <= self.lines and not self.faults["unpaired-line"]
        return not self.faults or faults == "skip" or (faults == "few" and few)

    def check(self, config: DataConfig) -> None:
        """Raise DataError where data.faults does not let training go on."""
        if not self.tolerated(config.faults):
            raise DataError(fault_message(self.first, self.faults.total()))

    def warning(self) -> str:
        """Which lines were skipped; empty if none was."""
        total = self.faults.total()
        return f"{total:,} of {self.lines:,} lines skipped: {summarize_faults(self.first, total)}" if total else ""


def read_examples(
    config: DataConfig,
    files: Files,
    *,
    several_references: bool = False,
    example_format: ExampleFormat = PAIR_FORMAT,
) -> Iterator[Example | Fault]:
    for entry in file_list(files):
        yield from example_format.read(config, entry, several_references)


def usable_examples(
    config: DataConfig,
    files: Files,
    *,
    several_references: bool = False,
    example_format: ExampleFormat = PAIR_FORMAT,
    progress: Progress = lambda doing, count: None,
    doing: str = "reading",
) -> Generator[Example, None, LineCounts]:
    """The examples alone; returns how many lines were skipped, by kind of fault.

    Faults that data.faults does not tolerate raise DataError once all lines are read, so that the message can count
    them.
    """
    counts = LineCounts()
    items = read_examples(config, files, several_references=several_references, example_format=example_format)
    for index, item in enumerate(items):
        if index % PROGRESS_EVERY == 0:
            progress(doing, index)
        counts.add(item)
        if isinstance(item, Example):
            yield item
    counts.check(config)
    return counts


def source_hash(example: Example) -> int:
    """A 64-bit hash of the source, so that all pairs of one source are in the same part."""
    return int.from_bytes(hashlib.blake2b(example.source.encode(), digest_size=8).digest(), "big")


class TrainValidSplit:
    """The usable examples of a corpus, split into training and validation data.

    Without data.valid, the split takes the examples whose source hash is below `threshold`, or in an ordered format
    the examples from index `first_valid` on.
    """

    def __init__(self, config: DataConfig, progress: Progress, example_format: ExampleFormat = PAIR_FORMAT) -> None:
        self.config, self.progress, self.format = config, progress, example_format
        self._counts: dict[bool, LineCounts] = {}
        self.examples = 0
        self.tags: Counter[str] = Counter()
        self.threshold = 0
        self.first_valid = 0
        self.overlap = int(example_format.overlapping)
        self._kept: dict[int, Example] | None = None  # the validation examples by index
        # Examples that may become validation data: hash, index, example. None: there are too many.
        self._likely: list[tuple[int, int, Example]] | None = [] if config.holdout <= MAX_KEPT else None
        smallest, largest, bound = 1 << 64, 0, 0
        by_hash = config.valid is None and not example_format.ordered
        for index, example in enumerate(self._usable(config.train, "reading")):
            self.examples += 1
            if example.tag:
                self.tags[example.tag] += 1
            if by_hash:
                hashed = source_hash(example)
                smallest, largest = min(smallest, hashed), max(largest, hashed)
                if index % 1024 == 0:
                    bound = self._hash_share()  # it falls with every example
                    self._prune(bound)
                if self._likely is not None and hashed < bound:
                    self._likely.append((hashed, index, example))
        self._check_counts()
        if by_hash:
            self._hold_out_by_hash(smallest, largest)
        elif config.valid is None:
            self._hold_out_last()

    def _prune(self, bound: int) -> None:
        """Drop examples that cannot become validation data any more, if there are many."""
        if self._likely is not None and len(self._likely) > 2 * MAX_KEPT:
            self._likely = [entry for entry in self._likely if entry[0] < bound]
            if len(self._likely) > MAX_KEPT:  # few sources that occur very often
                self._likely = None

    def _check_counts(self) -> None:
        if self.examples == 0:
            raise DataError(f"{', '.join(paths_of(self.config.train))}: no usable {self.format.unit} found")
        for entry in file_list(self.config.train):
            if (tag := tag_of(entry)) is not None and not self.tags[tag]:
                raise DataError(f"{', '.join(paths_of(entry))}: no usable pair found for the tag '{tag}'")

    def _hold_out_last(self) -> None:
        minimum = 2 + 2 * self.overlap
        if self.examples < minimum:
            raise DataError(
                f"{', '.join(paths_of(self.config.train))}: {self.format.unit}s: found {self.examples}, "
                f"expected {minimum} or more, since the last are set aside for validation; or name a file as "
                "data.valid"
            )
        self.first_valid = self.examples - max(1 + self.overlap, min(self.config.holdout, self.examples // 10))

    def _hold_out_by_hash(self, smallest: int, largest: int) -> None:
        if smallest == largest:
            raise DataError(
                f"{', '.join(paths_of(self.config.train))}: found one source only, expected two or more, "
                "since some are set aside for validation; or name a file as data.valid"
            )
        # However small the corpus, both parts have at least one source.
        share = self._hash_share()
        self.threshold = min(max(share, smallest + 1), largest)
        if self._likely is not None and self.threshold <= share:
            self._kept = {index: example for hashed, index, example in self._likely if hashed < self.threshold}
        self._likely = None

    def _hash_share(self) -> int:
        """The hash below which the validation examples lie, as far as the examples so far tell."""
        return int(min(0.1, self.config.holdout / self.examples) * 2**64)

    @property
    def counts(self) -> LineCounts:
        return sum(self._counts.values(), LineCounts())

    def _usable(self, files: Files, doing: str, *, several_references: bool = False) -> Iterator[Example]:
        # The same files are read several times: their faults count once.
        self._counts[several_references] = yield from usable_examples(
            self.config, files, several_references=several_references, example_format=self.format,
            progress=self.progress, doing=doing,
        )  # fmt: skip

    def train(self, doing: str) -> Iterator[Example]:
        """The training examples; `doing` is shown as progress."""
        for index, example in enumerate(self._usable(self.config.train, doing)):
            # In an overlapping format the last training example would hold a text of the first validation example.
            if not self._is_valid(index + self.overlap, example):
                yield example

    def _is_valid(self, index: int, example: Example) -> bool:
        if self.first_valid:
            return index >= self.first_valid
        if self._kept is not None:
            return index in self._kept
        return bool(self.threshold) and source_hash(example) < self.threshold

    def valid(self, doing: str) -> Iterator[Example]:
        """The validation examples; `doing` is shown as progress."""
        if self.config.valid is not None:
            for example in self._usable(self.config.valid, doing, several_references=True):
                if example.tag and example.tag not in self.tags:
                    found = f"{example.location}: found the tag '{example.tag}', which no training pair has"
                    raise DataError(f"{found}. {hint(example.tag, self.tags)}")
                yield example
            return
        if self._kept is not None:
            yield from self._kept.values()
            return
        for index, example in enumerate(self._usable(self.config.train, doing)):
            if self._is_valid(index, example):
                yield example


def too_few(files: Files, found: str) -> DataError:
    """The error for files with too few examples; an empty file is named."""
    paths = paths_of(files)
    empty = [path for path in paths if Path(path).is_file() and not Path(path).stat().st_size]
    if empty:
        return DataError(f"{', '.join(empty)}: the file is empty, expected at least 2 examples")
    return DataError(f"{', '.join(paths)}: {found}, expected at least 2")


def summarize_faults(faults: Sequence[Fault], count: int) -> str:
    """One line that quotes the first three of `count` faults."""
    shown = "; ".join(str(fault) for fault in faults[:3])
    return f"{shown} (and {count - 3} more)." if count > 3 else f"{shown}."


def fault_message(faults: Sequence[Fault], count: int) -> str:
    """The first three of `count` faults and what to do; `faults` are the first ones, up to MAX_FAULTS."""
    advice = columns_advice(faults) or encoding_advice(faults)
    action = f"{advice}, correct" if advice else "Correct"
    return f'{summarize_faults(faults, count)} {action} the lines, or skip such lines with data.faults="skip"'


def encoding_advice(faults: Sequence[Fault]) -> str:
    """How to convert a file in which many lines are no UTF-8; otherwise empty."""
    if sum(fault.kind == "bad-utf8" for fault in faults) < min(3, len(faults)):
        return ""
    return (
        "The text seems to be in another encoding: convert it, for example with "
        "`iconv -f WINDOWS-1252 -t UTF-8 IN > OUT` (WINDOWS-1250 for Central European text)"
    )


def columns_advice(faults: Sequence[Fault]) -> str:
    """How to set data.columns, if nearly all faulty lines have the same number of extra columns; otherwise empty."""
    counts = Counter(int(match[1]) for fault in faults if (match := _EXTRA_COLUMNS.match(fault.detail)))
    columns, lines = max(counts.items(), key=lambda item: item[1], default=(0, 0))
    if columns <= 2 or lines < 0.9 * len(faults):
        return ""
    if all("(word and tag)" in fault.detail for fault in faults):
        return f'Choose word and tag among the {columns} columns with data.columns, such as ["1", "{columns}"]'
    two_texts = f'two texts before a label or number: ["1", "2", "{columns}"]'
    return f'Choose among the {columns} columns with data.columns, such as ["1", "2"] ({two_texts})'
