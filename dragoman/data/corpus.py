"""Files of pairs → token stores, once: keyed by what the files hold and how they are to be read."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from dragoman.config import settings
from dragoman.config.settings import Range, setting
from dragoman.data.batching import PAIRS, Form
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.feature_store import FeatureColumn, MediaStore
from dragoman.data.formats.formats import PAIRS_SHAPE, Shape
from dragoman.data.formats.media import MediaShape
from dragoman.data.media.codec import Features, MediaConfig
from dragoman.data.readers.pairs import read_pairs
from dragoman.data.store import SIDES, Store, StoreWriter, TokenStore
from dragoman.data.tokenizers.labels import (
    FewLabelsError,
    Labels,
    Numbers,
    NumbersConfig,
    RunTokenizerConfig,
    load_codec,
    tokenizer_of,
)
from dragoman.data.tokenizers.language_tags import Tagged
from dragoman.data.tokenizers.tokenizer import UNK, NoTextError, SubwordsConfig, Tokenizer, TokenizerConfig
from dragoman.errors import DataError, nearest
from dragoman.files import cache_home, digest, sync

FORMAT = 1  # raise when stores written by older code must not be read any more
CHUNK = 20_000
FAULTS_KEPT = 100  # the first so many tell what is wrong with all
SURPLUS = re.compile("found ([0-9]+) columns, expected 2(?! or)")  # where two are usual and others can be chosen
FEATURES = "features"  # folder of a corpus of recordings or pictures
Files = str | tuple[str | Pairs, ...] | Pairs
Note = Callable[[str, int], None]  # (what is being done, how much of it so far)


@dataclass(frozen=True)
class DataConfig:
    """Where the pairs are and which of them can be used."""

    train: Files = setting(
        help="a file of what the task reads (pairs, labelled texts, plain text, a manifest), a list of them, or of "
        'pairs { source = "a.en", target = "a.de" }; '
        '.tsv, .jsonl or .parquet, also .gz or .zst; a table may have a tag, as in { file = "a.tsv", tag = "de" }'
    )
    valid: Files | None = setting(None, help="the same for validation; without it a part of train is set aside")
    columns: tuple[str, ...] = setting(
        (),
        help='which columns, such as ["2", "3"] or ["en", "de"]; before a label or number may stand two texts, '
        'as in ["4", "5", "1"]',
    )
    header: bool = setting(False, help="the first line of every tab-separated file names its columns")
    holdout: Annotated[int, Range(1, None)] = setting(
        2000,
        help="without valid: about so many examples are set aside by a hash of their source, at most a tenth; of "
        "running text, and of texts with the ones after them, the last",
    )
    faults: Literal["stop", "skip"] = setting("stop", help="on a line that cannot be used: stop, or leave it out")
    max_length: Annotated[int, Range(1, None)] = setting(
        256,
        help="longer examples (in tokens) are left out of training; of a masked language model texts are cut into rows "
        "of at most so many",
    )
    max_characters: Annotated[int, Range(1, None)] = setting(10_000, help="a longer line is a fault")
    media: str = setting(
        "", help="for transcribe and caption: the folder or .tar(.gz) that files are in; empty: the manifest's folder"
    )
    units: Literal["words", "phonemes"] = setting(
        "words", help="what the space-separated target symbols are; decides whether WER or PER is meant"
    )
    cache: str = setting("", help="folder for tokenised text; default $DRAGOMAN_CACHE or ~/.cache/dragoman")

    def problems(self) -> Iterator[str]:
        """What the entries cannot say one by one."""
        known = tags_of(self.train)
        for name, files in (("train", self.train), ("valid", self.valid)):
            if files == ():
                yield f"{name}: found an empty list, expected at least one file of pairs"
            for entry in file_list(files) if files is not None else ():
                tag, shown = tag_of(entry), " and ".join(paths_of(entry))
                if known and tag is None:
                    yield f"{name}: found no tag for {shown}, expected one, since others have tags ({', '.join(known)})"
                elif tag is not None and tag not in known:
                    match = nearest(tag, known)
                    better = f". Did you mean '{match}'?" if match else ""
                    found = f"{name}: found the tag '{tag}' for {shown}"
                    yield f"{found}, expected one of those in train ({', '.join(known) or 'none'}){better}"


@dataclass(frozen=True)
class TokenizersConfig:
    """How text becomes tokens on either side."""

    source: TokenizerConfig | NumbersConfig | RunTokenizerConfig | MediaConfig = setting(
        SubwordsConfig(),
        help="units of the source; numbers: a series, for regress; run: those of another run; audio, line-image, "
        "picture: files, for transcribe and caption",
    )
    target: TokenizerConfig | NumbersConfig | RunTokenizerConfig | None = setting(
        None,
        help="units of the target; without it one vocabulary (or scale of numbers) is learned from both sides; "
        "labels and tags need none",
    )


@dataclass(frozen=True)
class Corpus:
    """Everything training needs to know of the data."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: Store
    valid: Store
    valid_texts: Path  # JSON lines: source, references
    report: dict[str, Any]  # counts, faults, fingerprint
    form: Form = PAIRS  # how rows of the stores become batches


def file_list(files: Files) -> list[str | Pairs]:
    """One or several entries as a list."""
    return list(files) if isinstance(files, tuple) else [files]


def paths_of(files: Files) -> list[str]:
    """Every path on disk that stands behind an entry."""
    return [path for entry in file_list(files) for path in (entry.paths if isinstance(entry, Pairs) else [entry])]


def tag_of(entry: str | Pairs) -> str | None:
    """What the targets of an entry are, if it says so."""
    return entry.tag if isinstance(entry, Pairs) else None


def tags_of(files: Files) -> list[str]:
    """Every tag among the entries, each once, in the order of their ids."""
    return sorted({tag for entry in file_list(files) if (tag := tag_of(entry)) is not None})


def read_all(
    config: DataConfig, files: Files, *, several_references: bool = False, shape: Shape = PAIRS_SHAPE
) -> Iterator[Example | Fault]:
    """Every example or fault of one or several files, in order."""
    for entry in file_list(files):
        yield from shape.read(config, entry, several_references)


def file_digest(path: str) -> str:
    """A hash of a file's bytes."""
    try:
        return digest(Path(path))
    except OSError as error:
        # Let the reader say it: it knows the nearest name.
        for _ in read_pairs(path):
            break
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def fingerprint(config: DataConfig, tokenizers: TokenizersConfig, shape: Shape = PAIRS_SHAPE) -> str:
    """What the stores depend on: the bytes of the files and the settings that shape tokens."""
    digests = [[file_digest(path) for path in paths_of(files)] for files in (config.train, config.valid or ())]
    table = settings.as_table(config)
    relevant = {key: table.get(key) for key in ("columns", "holdout", "faults", "max_length", "max_characters")}
    layout = [_layout(files) for files in (config.train, config.valid)]
    content: list[object] = [FORMAT, digests, layout, relevant, _units(tokenizers)]
    if shape.name != PAIRS_SHAPE.name or config.header:  # what older stores knew nothing of
        content.append([shape.name, config.header])
    if isinstance(shape, MediaShape):
        entries = [*file_list(config.train), *(file_list(config.valid) if config.valid is not None else [])]
        items = (item for entry in entries for item in shape.read(config, entry, True))
        content.append(shape.digest(item for item in items if isinstance(item, Example)))
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _units(tokenizers: TokenizersConfig) -> object:
    """The settings of both tokenizers; of another run's units what they are, not where they stand."""
    table = settings.as_table(tokenizers)
    for side in ("source", "target"):
        if isinstance(config := getattr(tokenizers, side), RunTokenizerConfig):
            table[side] = {"kind": config.kind, "fingerprint": tokenizer_of(config).fingerprint()}
    return table


def _layout(files: Files | None) -> object:
    """How files go together and under which tags; plain names for the plain cases, as in FORMAT 1."""
    if files is None or isinstance(files, str):
        return type(files).__name__
    entries = file_list(files)
    if isinstance(files, tuple) and all(isinstance(entry, str) for entry in entries):
        return "tuple"
    if isinstance(files, Pairs) and files.file is None and files.tag is None:
        return "Parallel"
    return [[len(paths_of(entry)), tag_of(entry)] for entry in entries]


def cache_folder(config: DataConfig) -> Path:
    """Where tokenised text is kept between runs."""
    if config.cache:
        return Path(config.cache)
    return cache_home()


def source_hash(example: Example) -> int:
    """64 bits of a hash of the source: every pair of one source lands on the same side of the split."""
    return int.from_bytes(hashlib.blake2b(example.source.encode(), digest_size=8).digest(), "big")


class Selection:
    """The usable examples of a corpus, split into training and validation."""

    def __init__(self, config: DataConfig, note: Note, shape: Shape = PAIRS_SHAPE) -> None:
        self.config, self.note, self.shape = config, note, shape
        self._faults: dict[bool, Counter[str]] = {}
        self.examples = 0
        self.tags: Counter[str] = Counter()
        self.threshold = 0  # sources whose hash lies below are for validation
        self.last = 0  # where the order matters those from here on are
        self.overlap = int(getattr(shape, "overlapping", False))
        smallest, largest = 1 << 64, 0
        for example in self._usable(config.train, "reading"):
            self.examples += 1
            if example.tag:
                self.tags[example.tag] += 1
            if config.valid is None:
                place = source_hash(example)
                smallest, largest = min(smallest, place), max(largest, place)
        if self.examples == 0:
            unit = getattr(shape, "unit", "pair")
            raise DataError(f"{', '.join(paths_of(config.train))}: no usable {unit} found")
        for entry in file_list(config.train):
            if (tag := tag_of(entry)) is not None and not self.tags[tag]:
                raise DataError(f"{', '.join(paths_of(entry))}: no usable pair found for the tag '{tag}'")
        if config.valid is None and getattr(shape, "ordered", False):
            least = 2 + 2 * self.overlap
            if self.examples < least:
                raise DataError(
                    f"{', '.join(paths_of(config.train))}: {getattr(shape, 'unit', 'text')}s: found {self.examples}, "
                    f"expected {least} or more, since the last are set aside for validation; or name a file as "
                    "data.valid"
                )
            self.last = self.examples - max(1 + self.overlap, min(config.holdout, self.examples // 10))
        elif config.valid is None:
            if smallest == largest:
                raise DataError(
                    f"{', '.join(paths_of(config.train))}: found one source only, expected two or more, "
                    "since some are set aside for validation; or name a file as data.valid"
                )
            share = min(0.1, config.holdout / self.examples)
            # However small the corpus, one source is left on either side.
            self.threshold = min(max(int(share * 2**64), smallest + 1), largest)

    @property
    def faults(self) -> Counter[str]:
        """Lines left out, by kind."""
        return sum(self._faults.values(), Counter())

    def _usable(self, files: Files, doing: str, *, several_references: bool = False) -> Iterator[Example]:
        faults: Counter[str] = Counter()
        first: list[Fault] = []
        items = read_all(self.config, files, several_references=several_references, shape=self.shape)
        for count, item in enumerate(items):
            if count % CHUNK == 0:
                self.note(doing, count)
            if isinstance(item, Fault):
                faults[item.kind] += 1
                if len(first) < FAULTS_KEPT:
                    first.append(item)
            else:
                yield item
        if faults and self.config.faults == "stop":
            raise DataError(fault_message(first, sum(faults.values())))
        self._faults[several_references] = faults  # the same files are read several times: count them once

    def train(self, doing: str) -> Iterator[Example]:
        """The examples to learn from."""
        for place, example in enumerate(self._usable(self.config.train, doing)):
            # The last before those set aside may hold what the first of them does.
            if not self._set_aside(place + self.overlap, example):
                yield example

    def _set_aside(self, place: int, example: Example) -> bool:
        """Whether an example is for validation."""
        if self.last:
            return place >= self.last
        return bool(self.threshold) and source_hash(example) < self.threshold

    def valid(self, doing: str) -> Iterator[Example]:
        """The examples to validate on."""
        if self.config.valid is not None:
            yield from self._usable(self.config.valid, doing, several_references=True)
            return
        for place, example in enumerate(self._usable(self.config.train, doing)):
            if self._set_aside(place, example):
                yield example


def faults_told(first: Sequence[Fault], count: int) -> str:
    """One line that names the first three of so many faulty lines."""
    shown = "; ".join(str(fault) for fault in first[:3])
    return f"{shown} (and {count - 3} more)." if count > 3 else f"{shown}."


def fault_message(first: Sequence[Fault], count: int) -> str:
    """The same and what to do; of the first faults as many should be given as are at hand, up to FAULTS_KEPT."""
    advice = columns_advice(first)
    mend = f"{advice}, mend" if advice else "Mend"
    return f'{faults_told(first, count)} {mend} the lines, or leave such lines out with data.faults="skip"'


def columns_advice(faults: Sequence[Fault]) -> str:
    """How to choose columns, if nearly all faulty lines have the same number of them too many; else nothing."""
    found = Counter(int(match[1]) for fault in faults if (match := SURPLUS.match(fault.detail)))
    columns, lines = max(found.items(), key=lambda item: item[1], default=(0, 0))
    if columns <= 2 or lines < 0.9 * len(faults):
        return ""
    two = f'two texts before a label or number: ["1", "2", "{columns}"]'
    return f'Choose among the {columns} columns with data.columns, such as ["1", "2"] ({two})'


def chunks(examples: Iterable[Example], size: int = CHUNK) -> Iterator[list[Example]]:
    """Lists of so many examples."""
    iterator = iter(examples)
    while chunk := list(islice(iterator, size)):
        yield chunk


def write_store(
    folder: Path,
    examples: Iterable[Example],
    source: Tokenizer,
    target: Tokenizer,
    max_length: int,
    shape: Shape = PAIRS_SHAPE,
) -> tuple[dict[str, Any], list[Fault]]:
    """Tokenise examples into a store; gives counts of pairs, tokens and what was too long, which share of the tokens
    of each side is unknown, and what was no target."""
    counts: dict[str, Any] = dict.fromkeys(("pairs", "source_tokens", "target_tokens", "too_long"), 0)
    texts = {side: place for place, side in enumerate(SIDES) if is_text((source, target)[place])}
    tokens, unknown = Counter[str](), Counter[str]()
    faults: list[Fault] = []
    dtypes = shape.dtypes(source, target, max_length)
    with StoreWriter(folder, len(source), len(target), dtypes) as writer:
        for chunk in chunks(examples):
            rows = shape.rows(chunk, source, target)
            kept = []
            for row in rows:
                if isinstance(row, Fault):
                    faults.append(row)
                elif shape.fits(row, max_length):
                    kept.append(row)
                else:
                    counts["too_long"] += 1
            writer.add([left for left, _ in kept], [right for _, right in kept])
            counts["pairs"] += len(kept)
            counts["source_tokens"] += sum(len(left) for left, _ in kept)
            counts["target_tokens"] += sum(shape.terms(row) for row in kept)
            for side, place in texts.items():
                tokens[side] += sum(len(row[place]) for row in kept)
                unknown[side] += sum(row[place].count(UNK) for row in kept)
    counts["unknown"] = {side: unknown[side] / tokens[side] for side in texts if tokens[side]}
    return counts, faults


def is_text(codec: object) -> bool:
    """Whether what a codec turns into numbers are tokens, some of which may be unknown."""
    return not isinstance(codec, Labels | Numbers | Features)


def some_known(config: DataConfig, tokenizers: TokenizersConfig, shares: dict[str, float]) -> None:
    """That the vocabulary has at least one token of either side's text; else nothing could be learned."""
    for side, share in shares.items():
        if share == 1:
            setting = side if getattr(tokenizers, side) is not None else "source"
            raise DataError(
                f"{', '.join(paths_of(config.train))}: every token of the {side} is unknown to its vocabulary, "
                f"expected some that are not; change tokenizer.{setting} (minimum_count, vocabulary, kind)"
            )


def length_ratio(store: Store) -> float:
    """Target tokens per source token that nearly no pair exceeds, with some room: bounds decoding."""
    ratios = np.divide(store.target.lengths() + 1, store.source.lengths() + 1, dtype=np.float32)
    least = 0.0 if isinstance(store, MediaStore) else 1.0  # there are many more frames than tokens
    return round(max(least, 1.2 * float(np.quantile(ratios, 0.999))), 3)


def gathered(folder: Path, config: DataConfig, tokenizers: TokenizersConfig, note: Note, shape: Shape) -> Shape:
    """The shape after all recordings or pictures were read, where examples are such."""
    if not isinstance(shape, MediaShape):
        return shape
    files = [config.train, *([config.valid] if config.valid is not None else [])]
    items = (item for some in files for item in read_all(config, some, several_references=True, shape=shape))
    examples = (item for item in items if isinstance(item, Example))
    return shape.gathered(folder / FEATURES, examples, tokenizers.source, note)


def open_store(folder: Path) -> Store:
    """One part of a corpus."""
    features = folder.parent / FEATURES
    return MediaStore(folder, FeatureColumn(features)) if features.is_dir() else TokenStore(folder)


def _build(folder: Path, config: DataConfig, tokenizers: TokenizersConfig, note: Note, shape: Shape) -> None:
    shape = gathered(folder, config, tokenizers, note, shape)
    selection = Selection(config, note, shape)
    try:
        source, target = shape.learn(config, tokenizers, selection)
    except (FewLabelsError, NoTextError) as error:
        raise DataError(f"{', '.join(paths_of(config.train))}: {error}") from None
    if selection.tags:
        source = Tagged(source, tags_of(config.train))
    (folder / "tokenizer").mkdir()
    source.save(folder / "tokenizer", "source")
    target.save(folder / "tokenizer", "target")
    report: dict[str, Any] = {"examples": selection.examples}
    if selection.tags:
        report["tags"] = dict(sorted(selection.tags.items()))
    bounds = (source, target, config.max_length, shape)
    report["train"], _ = write_store(folder / "train", selection.train("tokenising"), *bounds)

    def kept_as_text(examples: Iterable[Example]) -> Iterator[Example]:
        with (folder / "valid.jsonl").open("w", encoding="utf-8") as file:
            for example in examples:
                row = {"source": example.tagged, "references": example.references}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                yield example

    valid = kept_as_text(selection.valid("tokenising validation pairs"))
    report["valid"], unknown = write_store(folder / "valid", valid, *bounds)
    if unknown and config.faults == "stop":
        raise DataError(fault_message(unknown, len(unknown)))
    report["faults"] = dict(selection.faults + Counter(fault.kind for fault in unknown))
    for part in ("train", "valid"):
        if not report[part]["pairs"]:
            own = config.valid if part == "valid" else None  # else it comes from the same files
            usable = "" if own else f"{selection.examples} usable, "
            files, unit = paths_of(config.train if own is None else own), getattr(shape, "unit", "pair")
            raise DataError(
                f"{', '.join(files)}: no {unit} is left for the {part} part ({usable}{report[part]['too_long']} "
                f"longer than data.max_length = {config.max_length} tokens)"
            )
    some_known(config, tokenizers, report["train"]["unknown"])
    if isinstance(shape, MediaShape):  # the stores hold numbers of frames that stand elsewhere
        for part in ("train", "valid"):
            report[part]["source_tokens"] = int(open_store(folder / part).source.lengths().sum())
    report["length_ratio"] = length_ratio(open_store(folder / "train"))
    (folder / "report.json").write_text(json.dumps(report, indent=2), encoding="utf-8")


def open_corpus(folder: Path, key: str) -> Corpus:
    """A corpus that was prepared before."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    source: Any = load_codec(folder / "tokenizer", "source")
    if isinstance(source, Features):
        source.remember(FeatureColumn(folder / FEATURES))
    return Corpus(
        source,
        load_codec(folder / "tokenizer", "target"),
        open_store(folder / "train"),
        open_store(folder / "valid"),
        folder / "valid.jsonl",
        report | {"fingerprint": key},
    )


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[bool]:
    """Lock a folder for the time of the block; gives whether that could be done."""
    try:
        import fcntl
    except ImportError:  # Windows: nobody locks, so nothing is ever taken for abandoned
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except OSError:  # another process holds it; or the file system, as some network ones, has no such locks
            held = False
        yield held
    finally:
        os.close(handle)


@contextmanager
def workplace(cache: Path, key: str) -> Iterator[Path]:
    """A folder to build in, locked while its process lives; what killed processes left behind is removed."""
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache, wait=True):  # nobody may take a folder for abandoned before its maker has locked it
        for folder in cache.glob("[0-9a-f]" * len(key) + ".*"):
            with suppress(OSError), locked(folder) as abandoned:
                if abandoned:
                    shutil.rmtree(folder)
        building = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=cache))
        lock = ExitStack()
        lock.enter_context(locked(building))
    with lock:
        try:
            yield building
        finally:
            shutil.rmtree(building, ignore_errors=True)


def prepare(
    config: DataConfig,
    tokenizers: TokenizersConfig,
    note: Note = lambda doing, count: None,
    shape: Shape = PAIRS_SHAPE,
) -> Corpus:
    """Tokenise what the configuration names, unless that was done before."""
    cache = cache_folder(config)
    key = fingerprint(config, tokenizers, shape)
    folder = cache / key
    if not (folder / "report.json").exists():
        try:
            with workplace(cache, key) as building:
                _build(building, config, tokenizers, note, shape)
                for path in (*building.rglob("*"), building):
                    sync(path)
                try:
                    building.rename(folder)
                except OSError:
                    # Another process prepared the same text meanwhile; its work is as good as ours.
                    if not (folder / "report.json").exists():
                        raise
        except OSError as error:
            raise DataError(f"{cache}: cannot write the token store here ({error.strerror})") from None
    return open_corpus(folder, key)
