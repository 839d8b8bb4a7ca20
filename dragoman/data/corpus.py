"""Prepare a corpus: read and tokenise its files once, and keep the token stores in a cache keyed by their content."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.base import ConfigError, DataError, Progress, digest, remove_folder, write_text
from dragoman.base import config as settings
from dragoman.data.batch import Batch
from dragoman.data.batching import BatchPlan, read_batch
from dragoman.data.bpe_dropout import SampledStore, dropout_of
from dragoman.data.collate import PAIR_COLLATOR, Collator
from dragoman.data.config import (
    MAX_LENGTH_RATIO,
    DataConfig,
    Files,
    TokenizersConfig,
    file_list,
    paths_of,
    tag_of,
)
from dragoman.data.corpus_cache import cache_folder, cached
from dragoman.data.examples import Example, file_of
from dragoman.data.formats.base import ExampleFormat, TokenizerPair
from dragoman.data.formats.media import MediaFormat
from dragoman.data.formats.pairs import COPY_FORMAT, PAIR_FORMAT, hallucinate
from dragoman.data.media.feature_extractor import extractor_of
from dragoman.data.readers.pairs import read_pairs
from dragoman.data.remote import origins
from dragoman.data.source_reader import SourceReader
from dragoman.data.split import LineCounts, TrainValidSplit, read_examples
from dragoman.data.store import COLUMNS, LENGTHS_CHUNK, FeatureColumn, MediaStore, TokenStore
from dragoman.data.tokenise import StoreCounts, join_stores, write_store
from dragoman.data.tokenizers.base import NoTextError, Tokenizer, content_hash
from dragoman.data.tokenizers.characters import CharactersConfig
from dragoman.data.tokenizers.context import ContextTokenizer
from dragoman.data.tokenizers.labels import FewLabelsError
from dragoman.data.tokenizers.language_tags import LanguageTagTokenizer
from dragoman.data.tokenizers.load import RunTokenizerConfig, load_run_tokenizer, load_tokenizers
from dragoman.data.tokenizers.pair_codec import PairCodec
from dragoman.data.translation_memory import TranslationMemory
from dragoman.data.workers import WORK, WorkerPool, part_folder, pool_for, remove_shard

FORMAT = 2  # increase it when stores of older code must not be read any more
FEATURES = "features"  # subfolder of a corpus of media files
TRAINED = "tokenizer.done"  # in the folder of unfinished work
REPORT = "report.json"


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus: all that training needs of the data."""

    source_tokenizer: SourceReader
    target_tokenizer: Tokenizer
    train: TokenStore
    valid: TokenStore
    valid_texts: Path  # JSON lines: source, references
    report: dict[str, Any]  # counts, faults, fingerprint
    codec: PairCodec
    collator: Collator = PAIR_COLLATOR

    def batches(self, tokens: int = 4096, seed: int = 1, epoch: int = 0) -> Iterator[Batch]:
        """One epoch of training batches of at most `tokens` tokens on either side, for a training loop of your own."""
        store = self.sampled(seed).epoch(epoch) if self.has_dropout else self.train
        plan = BatchPlan(store, tokens, seed, collator=self.collator)
        return (read_batch(store, rows, plan) for rows in plan.epoch(epoch))

    @property
    def has_dropout(self) -> bool:
        """Whether a tokenizer has BPE-dropout."""
        return any(map(dropout_of, (self.source_tokenizer, self.target_tokenizer)))

    def sampled(self, seed: int) -> SampledStore:
        """The training data with other sub-words in every epoch."""
        return SampledStore(self.train, (self.source_tokenizer, self.target_tokenizer), seed)


def file_digest(path: str) -> str:
    try:
        return digest(Path(path))
    except OSError as error:
        # The reader has the better message: it suggests the nearest name.
        for _ in read_pairs(path):
            break
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _digests(files: Files) -> list[Any]:
    """The content of files and their suffixes, which decide how a file is read."""
    return [(file_digest(path), Path(path).suffixes) for path in paths_of(files)]


def fingerprint(config: DataConfig, tokenizers: TokenizersConfig, example_format: ExampleFormat = PAIR_FORMAT) -> str:
    """A hash of all that the stores depend on: bytes and suffixes of the files, settings that change tokens."""
    table = settings.as_table(config)
    relevant = {
        key: table.get(key) for key in ("columns", "header", "holdout", "faults", "max_length", "max_characters")
    }
    # The other values give the same stores, or none.
    relevant["faults"] = "skip" if config.faults == "skip" else "stop"
    for name in ("hallucinate", "tag_column", "document_column", "context", "memory"):
        if value := getattr(config, name):
            relevant[name] = value
    digests = [_digests(files) for files in (config.train, config.valid or ())]
    layout = [_layout(config.train, config.weights), _layout(config.valid)]
    content: list[object] = [FORMAT, digests, layout, relevant, _tokenizer_table(tokenizers), example_format.name]
    if isinstance(example_format, MediaFormat):
        content.append(example_format.digest(_all_examples(config, example_format)))
    return content_hash(content)


def store_key(key: str, example_format: ExampleFormat) -> str:
    """The cache folder of data with this fingerprint. Runs record the fingerprint, so it must stay the same."""
    version = example_format.store_version
    return hashlib.blake2b(f"{key} {version}".encode(), digest_size=16).hexdigest() if version else key


def _all_examples(config: DataConfig, example_format: ExampleFormat) -> Iterator[Example]:
    for files in (config.train, config.valid):
        if files is not None:
            items = read_examples(config, files, several_references=True, example_format=example_format)
            yield from (item for item in items if isinstance(item, Example))


def _tokenizer_table(tokenizers: TokenizersConfig) -> object:
    """The settings of both tokenizers; for the tokenizer of another run its content, not its path."""
    table: dict[str, Any] = dict(settings.as_table(tokenizers))
    for column in COLUMNS:
        if isinstance(config := getattr(tokenizers, column), RunTokenizerConfig):
            loaded = load_run_tokenizer(config)
            table[column] = {"kind": config.kind, "fingerprint": loaded.fingerprint(), "dropout": dropout_of(loaded)}
        if not (table.get(column) or {}).get("dropout", True):  # as before there was such a setting
            del table[column]["dropout"]
    return table


def _layout(files: Files | None, weights: Mapping[str, float] | None = None) -> object:
    """Which files belong together, their language tags and weights."""
    if files is None:
        return None
    return [
        [file_of(entry) is None, len(paths_of(entry)), tag_of(entry)]
        + ([weights.get(paths_of(entry)[0], 1.0)] if weights else [])
        for entry in file_list(files)
    ]


def check_unknown(config: DataConfig, tokenizers: TokenizersConfig, shares: dict[str, float]) -> None:
    """Raise DataError if all tokens of a column are unknown, so that nothing can be learned from it."""
    for column, share in shares.items():
        if share == 1:
            setting = column if getattr(tokenizers, column) is not None else "source"
            raise DataError(
                f"{', '.join(paths_of(config.train))}: every token of the {column} is unknown to its vocabulary, "
                f"expected some that are not; change tokenizer.{setting} (min_count, vocab_size, kind)"
            )


def length_ratio(store: TokenStore) -> float:
    """1.2 times the 99.9 % quantile of target tokens per source token; decoding limits its outputs by it."""
    if isinstance(store, MediaStore) or len(store) <= LENGTHS_CHUNK:
        ratios = np.divide(store.target.lengths() + 1, store.source.lengths() + 1, dtype=np.float32)
        quantile = float(np.quantile(ratios, 0.999))
    else:  # of a large corpus only the largest ratios are in memory
        count = len(store) - int(0.999 * (len(store) - 1))
        largest = np.zeros(0, np.float32)
        for first in range(0, len(store), LENGTHS_CHUNK):
            last = min(first + LENGTHS_CHUNK, len(store))
            target, source = (np.diff(column.offsets(first, last)) + 1 for column in (store.target, store.source))
            largest = np.sort(np.append(largest, np.divide(target, source, dtype=np.float32)))[-count:]
        quantile = float(largest[0])
    minimum = 0.0 if isinstance(store, MediaStore) else 1.0  # there are many more frames than tokens
    return round(min(MAX_LENGTH_RATIO, max(minimum, 1.2 * quantile)), 3)


def source_lengths(store: TokenStore) -> dict[str, float]:
    """The 99th percentile of source lengths in tokens, and how target lengths follow them (Pearson); none of files."""
    if isinstance(store, MediaStore):
        return {}
    counts, sums = np.zeros(0, np.int64), np.zeros(5)
    for first in range(0, len(store), LENGTHS_CHUNK):
        last = min(first + LENGTHS_CHUNK, len(store))
        source, target = (np.diff(column.offsets(first, last)) for column in (store.source, store.target))
        own = np.bincount(source, minlength=len(counts))
        own[: len(counts)] += counts
        counts = own
        sums += [source.sum(), target.sum(), source @ source, target @ target, source @ target]
    mean, other, squares, others, products = sums / len(store)
    spread = math.sqrt(max(0.0, (squares - mean**2) * (others - other**2)))
    return {
        "p99": int(np.searchsorted(np.cumsum(counts), 0.99 * len(store))),
        "correlation": round((products - mean * other) / spread, 4) if spread else 0.0,
    }


def extract_features(
    folder: Path,
    config: DataConfig,
    tokenizers: TokenizersConfig,
    progress: Progress,
    example_format: ExampleFormat,
) -> ExampleFormat:
    """Write the features of all media files to a store; other formats than MediaFormat have none."""
    if not isinstance(example_format, MediaFormat):
        return example_format
    examples = _all_examples(config, example_format)
    return example_format.with_features(folder / FEATURES, examples, tokenizers.source, progress)


def open_store(folder: Path) -> TokenStore:
    features = folder.parent / FEATURES
    return MediaStore(folder, FeatureColumn(features)) if features.is_dir() else TokenStore(folder)


def _train_tokenizers(
    config: DataConfig, tokenizers: TokenizersConfig, split: TrainValidSplit, folder: Path
) -> TokenizerPair:
    if (folder.parent / WORK / TRAINED).exists():  # by a process that was killed afterwards
        return load_tokenizers(folder)
    remove_folder(folder)
    try:
        source, target = split.format.train_tokenizers(config, tokenizers, split)
    except (FewLabelsError, NoTextError) as error:
        raise DataError(f"{', '.join(paths_of(config.train))}: {error}") from None
    if config.reads_more:
        source = ContextTokenizer(source, config.context or 1, config.max_length - bool(split.tags))
    if split.tags:
        source = LanguageTagTokenizer(source, sorted(split.tags))
    folder.mkdir()
    source.save(folder, "source")
    target.save(folder, "target")
    if split.pool is not None:
        write_text(folder.parent / WORK / TRAINED, "")
    return source, target


def with_matches(examples: Iterable[Example], memory: TranslationMemory, least: float) -> Iterator[Example]:
    """The examples, each with the translation of the training source most like it, never of the same source.

    Neural fuzzy repair (Bulté and Tezcan 2019). Of the same source there is nothing to repair: `--memory` returns it.
    """
    for example in examples:
        matches = memory.fuzzy(example.source, least, other=True)
        yield example._replace(context=tuple(match.target for match in matches))


def _save_texts(path: Path, examples: Iterable[Example]) -> Iterator[Example]:
    """Pass the examples on, and write their texts as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        for example in examples:
            row = {"source": example.model_input, "references": example.references}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            yield example


def _build(
    folder: Path,
    config: DataConfig,
    tokenizers: TokenizersConfig,
    progress: Progress,
    example_format: ExampleFormat,
) -> None:
    """Write all files of a corpus."""
    if config.hallucinate and example_format not in (PAIR_FORMAT, COPY_FORMAT):
        raise ConfigError(f"data.hallucinate: found {config.hallucinate}, expected 0: only pairs of texts share stems")
    if config.weights and (example_format.ordered or isinstance(example_format, MediaFormat)):
        raise ConfigError("data.train: found a weight, which goes with pairs, labels and tags; expected none here")
    example_format = extract_features(folder, config, tokenizers, progress, example_format)
    with pool_for(config, example_format, folder) or nullcontext() as pool:  # shares the work on the training files
        split = TrainValidSplit(config, progress, example_format, pool)
        trained = _train_tokenizers(config, tokenizers, split, folder / "tokenizer")
        report: dict[str, Any] = {"examples": split.examples}
        if split.tags:
            report["tags"] = dict(sorted(split.tags.items()))
        matched: Callable[[Iterable[Example]], Iterator[Example]] = iter
        if config.memory:
            pairs = ((each.source, each.references[0]) for each in split.train("indexing training pairs"))
            matched = partial(with_matches, memory=TranslationMemory(pairs), least=config.memory)
        train = matched(split.train("tokenising"))
        made_up: list[Example] = []
        if config.hallucinate:
            marks = tokenizers.source.features if isinstance(tokenizers.source, CharactersConfig) else ""
            made_up = list(hallucinate(split.train("making up pairs"), config.hallucinate, marks))
            report["made_up"] = len(made_up)
        remove_folder(folder / "valid")  # of a process that was killed
        valid = _save_texts(folder / "valid.jsonl", matched(split.valid("tokenising validation pairs")))
        validated = write_store(folder / "valid", valid, trained, config.max_length, example_format)
        report["valid"] = validated.report()
        if pool is not None:
            trained_on = _write_shards(folder, pool, split)
        else:
            trained_on = write_store(
                folder / "train", chain(train, made_up), trained, config.max_length, example_format, config.weights
            )
        report["train"] = trained_on.report()
        counts = split.counts
        for fault in (*trained_on.faults, *validated.faults):
            counts.add(fault)
        counts.check(config)
        skipped = [str(fault) for fault in counts.first]
        report |= {"faults": dict(counts.faults), "skipped": skipped, "normalised": counts.normalised}
        for part in ("train", "valid"):
            if not report[part]["pairs"]:
                raise _empty_part(config, split, part, report[part]["too_long"])
        check_unknown(config, tokenizers, report["train"]["unknown"])
        if isinstance(example_format, MediaFormat):  # the stores hold row numbers of the feature store
            for part in ("train", "valid"):
                report[part]["source_tokens"] = int(open_store(folder / part).source.lengths().sum())
        report["length_ratio"] = length_ratio(open_store(folder / "train"))
        report["source_lengths"] = source_lengths(open_store(folder / "train"))
        report["characters"] = trained_on.characters
        write_text(folder / REPORT, json.dumps(report, indent=2))
    remove_folder(folder / WORK)


def _write_shards(folder: Path, pool: WorkerPool, split: TrainValidSplit) -> StoreCounts:
    """Let the workers tokenise the training examples, and join what they write."""
    counts, parts = StoreCounts(), range(len(pool.shards))
    for number, content in enumerate(pool.run("write", split.shard_jobs())):
        split.progress("tokenising", split.starts[number])
        counts += StoreCounts.from_json(content)
    remove_folder(folder / "train")  # of a process that was killed while it joined them
    join_stores(folder / "train", [part_folder(folder, number) for number in parts])
    for number in parts:
        remove_shard(folder, number)
    return counts


def _empty_part(config: DataConfig, split: TrainValidSplit, part: str, too_long: int) -> DataError:
    own_files = config.valid if part == "valid" else None  # otherwise it comes from the training files
    usable = "" if own_files else f"{split.examples} usable, "
    files = paths_of(config.train if own_files is None else own_files)
    return DataError(
        f"{', '.join(files)}: no {split.format.unit} is left for the {part} part ({usable}{too_long} "
        f"longer than data.max_length = {config.max_length} tokens)"
    )


def prepare_corpus(
    config: DataConfig,
    tokenizers: TokenizersConfig,
    progress: Progress = lambda doing, count: None,
    example_format: ExampleFormat = PAIR_FORMAT,
) -> Corpus:
    """Read and tokenise the files of a configuration, unless the cache has the result."""
    config.check_shuffle()
    key = fingerprint(config, tokenizers, example_format)
    folder = cached(
        cache_folder(config),
        store_key(key, example_format),
        lambda folder: _build(folder, config, tokenizers, progress, example_format),
    )
    report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    if "source_lengths" not in report:  # an earlier version filled the cache
        report["source_lengths"] = source_lengths(open_store(folder / "train"))
    if report["faults"] and config.faults in ("refuse", "stop"):  # another run has tolerated them
        found = "; ".join(report.get("skipped", [])[:3]) or ", ".join(report["faults"])
        raise DataError(f'{found}. Correct the lines, or skip such lines with data.faults="few" or "skip"')
    source, target = load_tokenizers(folder / "tokenizer")
    if source.reads_files:
        extractor_of(source).use_store(FeatureColumn(folder / FEATURES))
    if remote := origins([*paths_of(config.train), *paths_of(config.valid or ())]):
        report["remote"] = remote
    return Corpus(
        source,
        target,
        open_store(folder / "train"),
        open_store(folder / "valid"),
        folder / "valid.jsonl",
        report | {"fingerprint": key},
        example_format.codec(source, target),
    )


def with_other_validation(corpus: Corpus, config: DataConfig, files: Files, example_format: ExampleFormat) -> Corpus:
    """The corpus with another validation part, which its own tokenizers split; cached like the corpus."""
    if isinstance(example_format, MediaFormat):
        raise DataError("data.general: found with media files, expected a task that reads text")

    def build(folder: Path) -> None:
        items = list(read_examples(config, files, several_references=True, example_format=example_format))
        examples = _save_texts(folder / "valid.jsonl", (item for item in items if isinstance(item, Example)))
        tokenizers = corpus.source_tokenizer, corpus.target_tokenizer
        counts = write_store(folder / "valid", examples, tokenizers, config.max_length, example_format)
        lines = LineCounts()
        for item in (*items, *counts.faults):
            lines.add(item)
        lines.check(config)
        if not counts.sums["pairs"]:
            raise DataError(f"{', '.join(paths_of(files))}: found no usable {example_format.unit}, expected some")

    key = content_hash([FORMAT, corpus.report["fingerprint"], _digests(files), _layout(files)])
    folder = cached(cache_folder(config), store_key(key, example_format), build)
    return replace(corpus, valid=open_store(folder / "valid"), valid_texts=folder / "valid.jsonl")
