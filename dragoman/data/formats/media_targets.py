"""Recordings and pictures with a label, with numbers or with a tag for every frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.formats.base import Row, TrainingExamples, targets
from dragoman.data.formats.media import MediaFormat
from dragoman.data.formats.numbers import check_shape, same_targets, with_steps
from dragoman.data.media.audio import AudioConfig
from dragoman.data.media.feature_extractor import extractor_of
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.labels import LabelVocabulary, UnknownLabelError
from dragoman.data.tokenizers.numbers import NumberScaler, NumbersConfig, number_error

TAG_END = "@"  # "sil@0.35": the frames up to 0.35 seconds


class MediaTargetFormat(MediaFormat):
    """A media file and a target that is no text."""

    def __init__(self, name: str) -> None:
        super().__init__(name, several=False)

    def fits(self, row: Row, max_length: int) -> bool:
        return True

    def encode(self, examples: Sequence[Example], source: SourceReader, target: Tokenizer) -> list[Row | Fault]:
        """The row number of the features (the features themselves without a store), and the target."""
        out: list[Row | Fault] = []
        for example, row in zip(examples, self.source_rows(examples, source), strict=True):
            frames = len(row) if self.column is None else int(self.column.lengths()[row[0]])
            encoded = self.encode_target(example, frames, source, target)
            out.append(encoded if isinstance(encoded, Fault) else (row, encoded))
        return out

    def encode_target(self, example: Example, frames: int, source: Any, target: Any) -> list[Any] | Fault:
        """The target of a file with this many frames, or its fault."""
        raise NotImplementedError

    def encode_inputs(
        self, texts: Sequence[str], source: SourceReader, first: int = 1
    ) -> tuple[list[Any], list[list[Any]] | None]:
        return source.encode_batch(texts), None


class MediaLabelFormat(MediaTargetFormat):
    """A media file and a label: image classification, keyword spotting."""

    def __init__(self) -> None:
        super().__init__("media-labels")

    def train_target(self, tokenizers: TokenizersConfig, examples: TrainingExamples) -> Tokenizer:
        return LabelVocabulary.of(text.strip() for text in targets(examples, "learning labels"))

    def encode_target(self, example: Example, frames: int, source: Any, target: Any) -> list[Any] | Fault:
        try:
            return [target.label_id(example.references[0].strip())]
        except UnknownLabelError as error:
            return Fault(example.location, "unknown-label", str(error))

    def target_count(self, row: Row) -> int:
        return 1


class MediaNumberFormat(MediaTargetFormat):
    """A media file and one or more numbers."""

    def __init__(self) -> None:
        super().__init__("media-numbers")

    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
        return same_targets(super().read(config, entry, several_references))

    def validate(self, example: Example) -> Example | Fault:
        if error := number_error(example.references[0]):
            return Fault(example.location, "not-a-number", f"{error} as the target")
        return super().validate(example)

    def train_target(self, tokenizers: TokenizersConfig, examples: TrainingExamples) -> Tokenizer:
        config = tokenizers.target if isinstance(tokenizers.target, NumbersConfig) else NumbersConfig()
        return with_steps(NumberScaler.train(config, targets(examples, "learning the scale of numbers")), examples)

    def encode_target(self, example: Example, frames: int, source: Any, target: Any) -> list[Any] | Fault:
        check_shape(example.references[0], target, f"{example.location}: target")
        row: list[Any] = target.encode(example.references[0])
        return row

    def column_dtypes(self, source: SourceReader, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        return {**super().column_dtypes(source, target, max_length), "target": "float32"}


class MediaTagFormat(MediaTargetFormat):
    """A recording and a tag for every frame.

    The target has one tag per frame, or tags with the second (of line images: the column) at which each ends:
    "sil@0.35 yes@0.8 sil@1.2". The last one reaches to the end of the file. A row holds tags, then frame numbers.
    """

    def __init__(self) -> None:
        super().__init__("media-tags")

    def train_target(self, tokenizers: TokenizersConfig, examples: TrainingExamples) -> Tokenizer:
        rows = targets(examples, "learning tags")
        return LabelVocabulary.of(word.partition(TAG_END)[0] for text in rows for word in text.split())

    def encode_target(self, example: Example, frames: int, source: Any, target: Any) -> list[Any] | Fault:
        tags = frame_tags(example.references[0], frames, extractor_of(source).config)
        if isinstance(tags, str):
            return Fault(example.location, "wrong-tags", tags)
        try:
            return [*map(target.label_id, tags), *range(frames)]
        except UnknownLabelError as error:
            return Fault(example.location, "unknown-label", str(error))

    def target_count(self, row: Row) -> int:
        return len(row[1]) // 2

    def encode_inputs(
        self, texts: Sequence[str], source: SourceReader, first: int = 1
    ) -> tuple[list[Any], list[list[Any]] | None]:
        """The features of every path; and zeros in place of the tags, with the numbers of frames."""
        rows = source.encode_batch(texts)
        return rows, [[*[0] * len(row), *range(len(row))] for row in rows]

    def column_dtypes(self, source: SourceReader, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        return {**super().column_dtypes(source, target, max_length), "target": "uint32"}


def frame_tags(text: str, frames: int, config: Any) -> list[str] | str:
    """The tag of every frame, or why the text does not give it."""
    words = text.split()
    if not any(TAG_END in word for word in words):
        if len(words) == frames:
            return words
        return (
            f"found {len(words)} tags for {frames} {config.unit}, expected as many of each, or tags with ends: sil@0.35"
        )
    step = config.hop if isinstance(config, AudioConfig) else getattr(config, "hop_samples", 1)
    step /= 1 if isinstance(config, AudioConfig) else getattr(config, "sample_rate", 1)
    tags: list[str] = []
    for word in words:
        tag, _, end = word.rpartition(TAG_END)
        try:
            last = round(float(end) / step)
        except (ValueError, OverflowError):
            return f"found '{word}', expected a tag and the {config.measure} at which it ends: sil@0.35"
        if not tag or last < len(tags):
            return f"found '{word}', which ends before the tag ahead of it; expected rising ends"
        tags += [tag] * (min(last, frames) - len(tags))
    tags += [tags[-1] if tags else words[-1].rpartition(TAG_END)[0]] * (frames - len(tags))
    return tags
