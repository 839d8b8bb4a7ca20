"""Read the usable examples of a corpus, say which lines cannot be used, and split training and validation data."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from dragoman.base import DataError, Progress, hint
from dragoman.data.config import DataConfig, Files, file_list, paths_of, tag_of
from dragoman.data.examples import Example, Fault
from dragoman.data.formats.base import ExampleFormat
from dragoman.data.formats.pairs import PAIR_FORMAT
from dragoman.data.shards import Shard, read_shard
from dragoman.data.tokenizers.subwords import sampled_numbers

PROGRESS_EVERY = 20_000
MAX_KEPT = 20_000  # validation examples that are kept in memory, so that nobody reads the files again for them
MAX_FAULTS = 100  # readers keep this many faults for messages
FEW = 1000  # data.faults = "few" skips at most one line in so many
# A line with too many columns in a format of two columns, for which data.columns can choose others.
_EXTRA_COLUMNS = re.compile("found ([0-9]+) columns, expected 2(?! or)")


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
            raise DataError(fault_message(self.first, self.faults.total(), self.lines))

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


class ValidPart(NamedTuple):
    """Which examples of the training files are validation data; without data.valid some are."""

    threshold: int = 0  # those whose source hash is below it
    first: int = 0  # in an ordered format those from this index on
    kept: Collection[int] | None = None  # where they are known, those of these indices, which saves the hashes

    def has(self, index: int, example: Example) -> bool:
        if self.first:
            return index >= self.first
        if self.kept is not None:
            return index in self.kept
        return bool(self.threshold) and source_hash(example) < self.threshold


@dataclass
class ShardScan:
    """What the first pass over a shard finds."""

    counts: LineCounts = field(default_factory=LineCounts)
    examples: int = 0
    tags: Counter[str] = field(default_factory=Counter)
    smallest: int = 1 << 64  # of the source hashes
    largest: int = 0
    # Examples that may become validation data: hash, index, example. None: there are too many.
    likely: list[tuple[int, int, Example]] | None = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"counts": vars(self.counts)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> ShardScan:
        counts = LineCounts(**content["counts"])
        counts.faults, counts.first = Counter(counts.faults), [Fault(*fault) for fault in counts.first]
        likely = content["likely"] and [
            (hashed, index, Example(*example)._replace(references=tuple(example[1]), word_lines=()))
            for hashed, index, example in content["likely"]
        ]
        return cls(**content | {"counts": counts, "tags": Counter(content["tags"]), "likely": likely})


def scan_shard(
    config: DataConfig, example_format: ExampleFormat, shard: Shard, progress: Callable[[int], None]
) -> ShardScan:
    """Count the lines of a shard, and keep the examples that may become validation data."""
    scan, bound = ShardScan(likely=[] if config.holdout <= MAX_KEPT else None), 0
    by_hash = config.valid is None and not example_format.ordered
    for number, item in enumerate(read_shard(config, example_format, shard)):
        if number % PROGRESS_EVERY == 0:
            progress(number)
        scan.counts.add(item)
        if isinstance(item, Fault):
            continue
        index = scan.examples
        scan.examples += 1
        if item.tag:
            scan.tags[item.tag] += 1
        if by_hash:
            hashed = source_hash(item)
            scan.smallest, scan.largest = min(scan.smallest, hashed), max(scan.largest, hashed)
            if index % 1024 == 0:
                bound = hash_share(config, scan.examples)  # it falls with every example
                if scan.likely is not None and len(scan.likely) > 2 * MAX_KEPT:
                    scan.likely = pruned(scan.likely, bound)
            if scan.likely is not None and hashed < bound:
                scan.likely.append((hashed, index, item))
    if scan.likely is not None and scan.examples:
        scan.likely = pruned(scan.likely, hash_share(config, scan.examples))
    return scan


def hash_share(config: DataConfig, examples: int) -> int:
    """The hash below which the validation data of so many examples lie."""
    return int(min(0.1, config.holdout / examples) * 2**64)


def pruned(likely: list[tuple[int, int, Example]], bound: int) -> list[tuple[int, int, Example]] | None:
    """Without those that cannot become validation data any more; None if too many are left."""
    left = [entry for entry in likely if entry[0] < bound]
    return left if len(left) <= MAX_KEPT else None  # few sources that occur very often


class Workers(Protocol):
    """Processes that share the work on the shards of a corpus."""

    shards: list[Shard]

    def run(self, kind: str, jobs: Sequence[dict[str, Any]]) -> Iterator[Any]:
        """Do so many jobs of one kind; yields what each returns, in order."""


class TrainValidSplit:
    """The usable examples of a corpus, split into training and validation data.

    Without data.valid, the split takes the examples whose source hash is below a threshold, or in an ordered format
    the last ones.
    """

    def __init__(
        self,
        config: DataConfig,
        progress: Progress,
        example_format: ExampleFormat = PAIR_FORMAT,
        pool: Workers | None = None,
    ) -> None:
        """`pool`: reads the shards; without it this process reads them."""
        self.config, self.progress, self.format, self.pool = config, progress, example_format, pool
        self.shards = [Shard(number) for number in range(len(file_list(config.train)))] if pool is None else pool.shards
        self.starts = [0]  # the index of the first example of every shard, and the number of all
        self.tags: Counter[str] = Counter()
        self.overlap = int(example_format.overlapping)
        self._kept: dict[int, Example] | None = None  # the validation examples by index
        counts, smallest, largest = LineCounts(), 1 << 64, 0
        likely: list[tuple[int, int, Example]] | None = [] if config.holdout <= MAX_KEPT else None
        for scan in self._scans():
            counts += scan.counts
            self.tags += scan.tags
            smallest, largest = min(smallest, scan.smallest), max(largest, scan.largest)
            likely = None if likely is None or scan.likely is None else likely + [
                (hashed, self.examples + index, example) for hashed, index, example in scan.likely
            ]  # fmt: skip
            self.starts.append(self.examples + scan.examples)
            if likely and self.examples:
                likely = pruned(likely, hash_share(config, self.examples))
        self._counts = {False: counts}
        counts.check(config)
        self._check_counts()
        self.part = ValidPart()
        if config.valid is None and not example_format.ordered:
            self._hold_out_by_hash(smallest, largest, likely)
        elif config.valid is None:
            self._hold_out_last()

    @property
    def examples(self) -> int:
        return self.starts[-1]

    def _scans(self) -> Iterator[ShardScan]:
        if self.pool is not None:
            for content in self.pool.run("scan", [{} for _ in self.shards]):
                self.progress("reading", self.examples)
                yield ShardScan.from_json(content)
            return
        for shard in self.shards:
            lines = self.examples
            yield scan_shard(
                self.config,
                self.format,
                shard,
                lambda number, lines=lines: self.progress("reading", lines + number),  # type: ignore[misc]
            )

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
        held_out = max(1 + self.overlap, min(self.config.holdout, self.examples // 10))
        self.part = ValidPart(first=self.examples - held_out)

    def _hold_out_by_hash(self, smallest: int, largest: int, likely: list[tuple[int, int, Example]] | None) -> None:
        if smallest == largest:
            raise DataError(
                f"{', '.join(paths_of(self.config.train))}: found one source only, expected two or more, "
                "since some are set aside for validation; or name a file as data.valid"
            )
        # However small the corpus, both parts have at least one source.
        share = hash_share(self.config, self.examples)
        threshold = min(max(share, smallest + 1), largest)
        if likely is not None and threshold <= share:
            self._kept = {index: example for hashed, index, example in likely if hashed < threshold}
        self.part = ValidPart(threshold, kept=None if self._kept is None else self._kept.keys())

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
        for index, example in self._indexed(doing):
            # In an overlapping format the last training example would hold a text of the first validation example.
            if not self.part.has(index + self.overlap, example):
                yield example

    def _indexed(self, doing: str) -> Iterator[tuple[int, Example]]:
        """All examples of the training files with their indices."""
        for start, shard in zip(self.starts, self.shards, strict=False):
            for index, example in shard_examples(self.config, self.format, shard, start):
                if index % PROGRESS_EVERY == 0:
                    self.progress(doing, index)
                yield index, example

    def texts(self, doing: str, columns: Sequence[str]) -> Iterable[str]:
        """The texts of these columns of every training example, one example after the other."""
        if self.pool is not None and (self.part.kept is not None or not self.part.threshold):
            return ShardedTexts(self, doing, columns)
        return (text for example in self.train(doing) for text in texts_of(example, columns))

    def shard_jobs(self) -> list[dict[str, Any]]:
        """For a job on the training examples of every shard: where it starts, and which examples are not among them."""
        jobs = []
        for start, end in pairwise(self.starts):
            kept = self.part.kept
            within = None if kept is None else [index for index in kept if start <= index < end]
            jobs.append({"start": start, "part": self.part._replace(kept=within)})
        return jobs

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
        for index, example in self._indexed(doing):
            if self.part.has(index, example):
                yield example


def shard_examples(
    config: DataConfig, example_format: ExampleFormat, shard: Shard, start: int
) -> Iterator[tuple[int, Example]]:
    items = read_shard(config, example_format, shard)
    return enumerate((item for item in items if isinstance(item, Example)), start)


def texts_of(example: Example, columns: Sequence[str]) -> list[str]:
    return [example.source if column == "source" else example.references[0] for column in columns]


class ShardedTexts:
    """Texts of the training examples, of which the workers draw a sample."""

    def __init__(self, split: TrainValidSplit, doing: str, columns: Sequence[str]) -> None:
        self.split, self.doing, self.columns = split, doing, columns

    def __iter__(self) -> Iterator[str]:
        return (text for example in self.split.train(self.doing) for text in texts_of(example, self.columns))

    def sample(self, size: int) -> list[str]:
        """The texts that a reservoir would keep of all of them."""
        split, columns, pool = self.split, self.columns, self.split.pool
        assert pool is not None
        jobs = split.shard_jobs()
        counts = [
            end - start - len(job["part"].kept or ())
            for (start, end), job in zip(pairwise(split.starts), jobs, strict=True)
        ]
        ends = np.cumsum(counts) * len(columns)
        numbers = sampled_numbers(int(ends[-1]), size)
        order = np.argsort(numbers)
        bounds = np.searchsorted(numbers[order], [0, *ends])
        for job, first, (low, high) in zip(jobs, [0, *ends], pairwise(bounds), strict=False):
            job |= {"columns": list(columns), "numbers": (numbers[order[low:high]] - first).tolist()}
        drawn = np.empty(len(numbers), object)
        for (low, high), texts, start in zip(pairwise(bounds), pool.run("sample", jobs), split.starts, strict=False):
            split.progress(self.doing, start)
            drawn[order[low:high]] = texts
        return list(drawn)


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


def fault_message(faults: Sequence[Fault], count: int, lines: int) -> str:
    """The first three of `count` faults in so many lines, and what to do; `faults` are the first up to MAX_FAULTS."""
    advice = columns_advice(faults) or encoding_advice(faults)
    if count == lines:  # skipping them would leave nothing
        columns = any(fault.kind in ("wrong-columns", "missing-field") for fault in faults)
        advice = advice or "Every line has a fault: correct them, or name another file" + (
            " or other columns (data.columns)" if columns else ""
        )
        return f"{summarize_faults(faults, count)} {advice}"
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
