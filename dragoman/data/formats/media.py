"""Transcripts and captions: a manifest whose lines name a media file and its text or texts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from dragoman.base import digest
from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.formats.base import ExampleFormat, Row, TokenizerPair, TrainingExamples
from dragoman.data.media.audio import AudioConfig
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.media.files import (
    ARCHIVE_SEPARATOR,
    check_media_folder,
    frame_files,
    is_relative,
    resolve_path,
    split_path,
)
from dragoman.data.readers.pairs import read_pairs
from dragoman.data.source_reader import SourceReader
from dragoman.data.store import FeatureColumn, feature_statistics, write_features
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.load import train_tokenizer


class MediaFormat(ExampleFormat):
    """For formats whose sources are media files.

    `rows` comes from a feature store: for every path the number of its row, or the fault of the file. Such a fault
    becomes the fault of the manifest line that names the file. Without `rows`, files are read when they are encoded.
    """

    several = False  # without data.columns all columns after the first are texts
    rows: Mapping[str, int | Fault] | None = None
    column: FeatureColumn | None = None

    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
        """The lines of a manifest, each example with the path of its file."""
        manifest = entry.paths[0] if isinstance(entry, Pairs) else entry
        base = config.media or Path(manifest).parent
        checked = not config.media
        for item in read_pairs(entry, replace(config.reading, several_references=self.several)):
            if isinstance(item, Fault):
                yield item
                continue
            if not checked and is_relative(item.source):
                check_media_folder(config.media, "data.media")
                checked = True
            yield self.validate(item._replace(media_path=resolve_path(base, item.source)))

    def validate(self, example: Example) -> Example | Fault:
        fault = (self.rows or {}).get(example.media_path)
        return Fault(example.location, fault.kind, str(fault)) if isinstance(fault, Fault) else example

    def with_features(
        self, folder: Path, examples: Iterable[Example], config: Any, progress: Callable[[str, int], None]
    ) -> MediaFormat:
        """This format with the features of all files, which are written to a store in `folder`."""
        paths = list(dict.fromkeys(example.media_path for example in examples))
        rows: dict[str, int | Fault] = {path: row for row, path in enumerate(paths)}
        doing = f"reading {len(paths):,} file{'' if len(paths) == 1 else 's'}"
        for fault in write_features(folder, paths, config, lambda done: progress(doing, done)):
            rows[fault.location] = fault
        media_format = copy(self)
        media_format.rows, media_format.column = rows, FeatureColumn(folder)
        return media_format

    def train_tokenizers(
        self, config: DataConfig, tokenizers: TokenizersConfig, examples: TrainingExamples
    ) -> TokenizerPair:
        """A feature extractor, with corpus statistics if the settings say so, and the tokenizer of the targets."""
        media: Any = tokenizers.source
        mean = deviation = None
        if isinstance(media, AudioConfig) and media.normalise == "corpus":
            assert self.column is not None
            rows = [self._row(example) for example in examples.train("measuring features")]
            statistics = feature_statistics(self.column, rows)
            mean, deviation = statistics[0].tolist(), statistics[1].clip(min=1e-5).tolist()
        return FeatureExtractor(media, mean, deviation), self.train_target(tokenizers, examples)

    def _row(self, example: Example) -> int:
        row = (self.rows or {})[example.media_path]
        assert isinstance(row, int), "a file with a fault gives no example"
        return row

    def source_rows(self, examples: Sequence[Example], source: SourceReader) -> list[Any]:
        """The row number of each example's features, or the features themselves without a store."""
        if self.rows is None:
            return super().source_rows(examples, source)
        return [[self._row(example)] for example in examples]

    def fits(self, row: Row, max_length: int) -> bool:
        return True

    def column_dtypes(self, source: SourceReader, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        return {**super().column_dtypes(source, target, max_length), "source": "uint32"}

    def to_record(self, example: Example) -> dict[str, Any]:
        archive, name = split_path(example.media_path)
        path = f"{Path(archive).absolute()}{ARCHIVE_SEPARATOR}{name}" if archive else str(Path(name).absolute())
        return {"source": path, "target": list(example.references) if self.several else example.references[0]}

    def digest(self, examples: Iterable[Example]) -> str:
        """A hash of the bytes of all files that the examples name; a missing file counts as missing."""
        total = hashlib.blake2b(digest_size=16)
        for path in dict.fromkeys(split_path(example.media_path)[0] or example.media_path for example in examples):
            for file in frame_files(path) if Path(path).is_dir() else (Path(path),):
                try:
                    total.update(digest(file).encode())
                except OSError:
                    total.update(b"missing")
        return total.hexdigest()


class MediaTextFormat(MediaFormat):
    """A media file and one or more texts; each text is a target of its own."""

    def __init__(self, name: str, several: bool) -> None:
        self.name, self.several = name, several

    def train_target(self, tokenizers: TokenizersConfig, examples: TrainingExamples) -> Tokenizer:
        assert tokenizers.target is not None, "checked with the configuration"
        texts = (text for example in examples.train("learning the vocabulary") for text in example.references)
        return train_tokenizer(tokenizers.target, texts)

    def encode(self, examples: Sequence[Example], source: SourceReader, target: Tokenizer) -> list[Row | Fault]:
        target_rows = iter(target.encode_batch([text for example in examples for text in example.references]))
        return [
            (row, next(target_rows))
            for row, example in zip(self.source_rows(examples, source), examples, strict=True)
            for _ in example.references
        ]

    def fits(self, row: Row, max_length: int) -> bool:
        """The text alone counts; tokenizer.source limits the length of recordings."""
        return len(row[1]) <= max_length


TRANSCRIPTS = MediaTextFormat("transcripts", several=False)
CAPTIONS = MediaTextFormat("captions", several=True)
