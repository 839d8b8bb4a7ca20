"""Examples whose target is a label, numbers, or a tag for every word, step or frame.

The source is one text or two, a series of numbers, or a media file. Mix-ins for the target and the source make the
formats.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from dragoman.base import ConfigError, DataError
from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.formats.base import ExampleFormat, InputRows, Row, TokenizerPair, TrainingExamples, targets
from dragoman.data.formats.media import MediaFormat
from dragoman.data.media.audio import AudioConfig
from dragoman.data.media.feature_extractor import extractor_of
from dragoman.data.readers.conll import read_conll, split_words
from dragoman.data.readers.pairs import read_pairs
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import PAIR_DELIMITER, TextPairTokenizer, Tokenizer
from dragoman.data.tokenizers.labels import LabelVocabulary, UnknownLabelError
from dragoman.data.tokenizers.numbers import NumberScaler, NumbersConfig, number_error, series_shape

if TYPE_CHECKING:
    from dragoman.data.collate import ColumnCollator

TAG_END = "@"  # "sil@0.35": the frames up to 0.35 seconds


class LabelTarget(ExampleFormat):
    """The target is a label."""

    @property
    def target_collator(self) -> ColumnCollator:
        from dragoman.data.collate import ScalarCollator

        return ScalarCollator()

    def train_target(self, tokenizers: TokenizersConfig, examples: TrainingExamples) -> Tokenizer:
        return LabelVocabulary.of(text.strip() for text in targets(examples, "learning labels"))

    def encode_target(self, example: Example, row: Any, source: Any, target: Any) -> list[Any] | Fault:
        return [target.label_id(example.references[0].strip())]

    def target_count(self, row: Row) -> int:
        return 1


class NumberTarget(ExampleFormat):
    """The target are numbers, as many in every example."""

    @property
    def target_collator(self) -> ColumnCollator:
        import torch

        from dragoman.data.collate import ScalarCollator

        return ScalarCollator(torch.float32)

    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
        items = super().read(config, entry, several_references)  # type: ignore[safe-super]
        return same_shape(items, lambda example: series_shape(example.references[0]), _wrong_target)

    def validate(self, example: Example) -> Example | Fault:
        if error := number_error(example.references[0]):
            return Fault(example.location, "not-a-number", f"{error} as the target")
        return super().validate(example)

    def train_target(self, tokenizers: TokenizersConfig, examples: TrainingExamples) -> Tokenizer:
        config = tokenizers.target if isinstance(tokenizers.target, NumbersConfig) else NumbersConfig()
        return with_steps(NumberScaler.train(config, targets(examples, "learning the scale of numbers")), examples)

    def encode_target(self, example: Example, row: Any, source: Any, target: Any) -> list[Any] | Fault:
        check_shape(example.references[0], target, f"{example.location}: target")
        numbers: list[Any] = target.encode(example.references[0])
        return numbers

    def target_count(self, row: Row) -> int:
        return len(row[1])


def with_steps(scaler: NumberScaler, examples: TrainingExamples) -> NumberScaler:
    """The scaler of targets that have as many steps as that of the first example."""
    first = next(iter(examples.train("learning the scale of numbers")))
    return NumberScaler(scaler.config, scaler.shift, scaler.scale, series_shape(first.references[0])[0])


def same_shape(
    items: Iterator[Example | Fault], shape_of: Callable[[Example], Any], fault: Callable[[Example, Any, Any], str]
) -> Iterator[Example | Fault]:
    """The examples; one whose numbers have another shape than those of the first becomes a fault."""
    first = None
    for item in items:
        if isinstance(item, Example):
            shape = shape_of(item)
            first = first or shape
            if shape != first:
                item = Fault(item.location, "not-a-number", fault(item, shape, first))
        yield item


def _wrong_target(example: Example, shape: tuple[int, int], first: tuple[int, int]) -> str:
    found, expected = (f"{steps * width} numbers" for steps, width in (shape, first))
    text = example.references[0]
    return f"found '{text}' with {found} as the target, expected {expected} as in the first example"


def _wrong_channels(example: Example, channels: int, first: int) -> str:
    return f"found {channels} numbers in a step of the series, expected {first} as in the first series"


def check_shape(text: str, scaler: Any, location: str) -> None:
    """Raise an error for a series whose shape is not that of the training data."""
    if isinstance(scaler, NumberScaler) and (error := scaler.shape_error(text)):
        raise DataError(f"{location}: {error}")


class TagTarget(ExampleFormat):
    """The target are tags. A row holds the n tags, then the n positions of what they belong to in the source."""

    @property
    def target_collator(self) -> ColumnCollator:
        from dragoman.data.collate import TagCollator

        return TagCollator()

    def target_count(self, row: Row) -> int:
        return len(row[1]) // 2

    def encode_inputs(self, texts: Sequence[str], source: SourceReader, name: str = "input 1") -> InputRows:
        """The rows of sources; and zeros in place of the tags, with the positions."""
        rows = source.encode_batch(texts)
        positions = [self.positions(text, row, source) for text, row in zip(texts, rows, strict=True)]
        return rows, [[*[0] * len(row), *row] for row in positions]

    def positions(self, text: str, row: Any, source: SourceReader) -> Sequence[int]:
        """The positions of what the tags of a source belong to."""
        raise NotImplementedError


class LabelFormat(LabelTarget):
    """One or two texts and a label. Two texts are one source with a tab between them."""

    name = "labels"
    target = "label"

    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
        texts = max(1, len(config.columns) - 1)
        if texts > 2:
            found = len(config.columns)
            raise ConfigError(f"data.columns: found {found}, expected one or two texts and a {self.target}")
        for item in read_pairs(entry, replace(config.reading, several_references=texts > 1, numbers=True)):
            if isinstance(item, Fault):
                yield item
            elif len(item.references) != texts:
                yield Fault(item.location, "empty-side", f"the {self.target} is empty, expected text")
            else:
                source = PAIR_DELIMITER.join((item.source, *item.references[:-1]))
                yield self.validate(item._replace(source=source, references=(item.references[-1].strip(),)))

    def train_tokenizers(
        self, config: DataConfig, tokenizers: TokenizersConfig, examples: TrainingExamples
    ) -> TokenizerPair:
        source, target = super().train_tokenizers(config, tokenizers, examples)
        return TextPairTokenizer(source) if len(config.columns) > 2 else source, target

    def encode_inputs(self, texts: Sequence[str], source: SourceReader, name: str = "input 1") -> InputRows:
        """The tokens of one text, or of two texts with a tab between them; a wrong number of texts is a DataError."""
        expected = 1 if source.separator is None else 2
        for text in texts:
            parts = text.split(PAIR_DELIMITER)
            if len(parts) != expected or not all(part.strip() for part in parts):
                raise DataError(f"{name}: {_count_error(len(parts), expected)}")
        return super().encode_inputs(texts, source, name)

    def to_record(self, example: Example) -> dict[str, str]:
        texts = zip(("text1", "text2"), example.source.split(PAIR_DELIMITER), strict=False)
        return {**dict(texts), "target": example.references[0]}


def _count_error(count: int, expected: int) -> str:
    found = f"{count} texts with tabs between them" if count > 1 else "1 text"
    if count == expected:
        found = "an empty text"
    wanted = ("one text without a tab", "two texts with a tab between them")[expected - 1]
    return f"found {found}, expected {wanted}"


class NumberFormat(NumberTarget, LabelFormat):
    """One or two texts and one or more numbers, which are in the last of the columns."""

    name = "numbers"
    target = "number"


class TagFormat(TagTarget):
    """Words and one tag per word; its position is that of the word's first token."""

    name = "tags"

    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
        """Sentences in CoNLL columns, CoNLL-U, or with words and tags on one line."""
        items = read_conll(entry, config.reading)
        return (item if isinstance(item, Fault) else self.validate(item) for item in items)

    def train_target(self, tokenizers: TokenizersConfig, examples: TrainingExamples) -> Tokenizer:
        return LabelVocabulary.of(tag for text in targets(examples, "learning tags") for tag in text.split(" "))

    def encode_target(self, example: Example, row: Any, source: Any, target: Any) -> list[Any] | Fault:
        tags: list[int] = []
        try:
            for tag in example.references[0].split(" "):
                tags.append(target.label_id(tag))
        except UnknownLabelError as error:
            return Fault(example.word_location(len(tags)), "unknown-label", str(error))
        return [*tags, *self.positions(example.source, row, source)]

    def encode_inputs(self, texts: Sequence[str], source: SourceReader, name: str = "input 1") -> InputRows:
        return super().encode_inputs([" ".join(split_words(text)) for text in texts], source, name)

    def positions(self, text: str, row: Any, source: SourceReader) -> Sequence[int]:
        return word_positions(text, source)

    def column_dtypes(self, source: SourceReader, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        dtype = "uint16" if max(max_length, len(target)) < 1 << 16 else "uint32"
        return {**super().column_dtypes(source, target, max_length), "target": dtype}


def word_positions(text: str, tokenizer: SourceReader) -> list[int]:
    """The position of every word's first token: the token that covers its first character.

    Words are separated by single spaces. A word that the tokenizer drops (control characters alone) has the token
    before it.
    """
    words = text.split(" ")
    word_starts = list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))
    positions: list[int] = []
    for position, (first, end) in enumerate(tokenizer.spans(text)):
        while first < end and text[first] == " ":
            first += 1
        if first < end and (word := bisect_right(word_starts, first) - 1) >= len(positions):
            dropped = word - len(positions)
            positions += [*[max(0, position - 1)] * dropped, position]
    return positions + [positions[-1] if positions else 0] * (len(words) - len(positions))


class SeriesSource(ExampleFormat):
    """The source is a series of numbers, or several. With `missing`, "nan" is a missing value of a series."""

    missing = False

    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
        if len(config.columns) > 2:
            raise ConfigError(
                f"data.columns: found {len(config.columns)}, expected one series and its target; several series are "
                'one column with semicolons: "0.1;20 0.2;21"'
            )
        items = super().read(config, entry, several_references)  # type: ignore[safe-super]
        return same_shape(items, lambda example: series_shape(example.source)[1], _wrong_channels)

    def validate(self, example: Example) -> Example | Fault:
        if error := number_error(example.source, self.missing):
            return Fault(example.location, "not-a-number", f"{error} in the series")
        return super().validate(example)

    def source_rows(self, examples: Sequence[Example], source: SourceReader) -> list[Any]:
        for example in examples:
            check_shape(example.source, source, example.location)
        return super().source_rows(examples, source)

    def encode_inputs(self, texts: Sequence[str], source: SourceReader, name: str = "input 1") -> InputRows:
        for text in texts:
            if error := number_error(text, self.missing):
                raise DataError(f"{name}: {error}")
            check_shape(text, source, name)
        return super().encode_inputs(texts, source, name)


class SeriesFormat(SeriesSource, NumberFormat):
    """One or more series of numbers, and one or more numbers."""

    def __init__(self, missing: bool = False) -> None:
        self.missing, self.name = missing, "series-with-gaps" if missing else "series"

    def train_tokenizers(
        self, config: DataConfig, tokenizers: TokenizersConfig, examples: TrainingExamples
    ) -> TokenizerPair:
        """The scales of source and target; without a target tokenizer both are one, if both have as many series."""
        assert isinstance(tokenizers.source, NumbersConfig)
        first = next(iter(examples.train("learning the scale of numbers")))
        if tokenizers.target is not None or series_shape(first.source)[1] != series_shape(first.references[0])[1]:
            return super().train_tokenizers(config, tokenizers, examples)
        both = (
            f"{example.source} {example.references[0]}" for example in examples.train("learning the scale of numbers")
        )
        scaler = NumberScaler.train(tokenizers.source, both)
        return scaler, with_steps(scaler, examples)


class SeriesLabelFormat(SeriesSource, LabelFormat):
    """One or more series of numbers, and a label."""

    name = "series-labels"


class SeriesTagFormat(SeriesSource, TagFormat):
    """One or more series of numbers, and one tag per step. A step stands where a sentence has a word."""

    name = "series-tags"

    def positions(self, text: str, row: Any, source: SourceReader) -> Sequence[int]:
        return range(len(text.split()))


class MediaLabelFormat(LabelTarget, MediaFormat):
    """A media file and a label: image classification, keyword spotting."""

    name = "media-labels"


class MediaNumberFormat(NumberTarget, MediaFormat):
    """A media file and one or more numbers."""

    name = "media-numbers"


class MediaTagFormat(TagTarget, MediaFormat):
    """A recording and a tag for every frame.

    The target has one tag per frame, or tags with the second (of line images: the column) at which each ends:
    "sil@0.35 yes@0.8 sil@1.2". The last one reaches to the end of the file.
    """

    name = "media-tags"

    def train_target(self, tokenizers: TokenizersConfig, examples: TrainingExamples) -> Tokenizer:
        rows = targets(examples, "learning tags")
        return LabelVocabulary.of(word.partition(TAG_END)[0] for text in rows for word in text.split())

    def encode_target(self, example: Example, row: Any, source: Any, target: Any) -> list[Any] | Fault:
        frames = len(row) if self.column is None else self.column.length(row[0])
        tags = frame_tags(example.references[0], frames, extractor_of(source).config)
        if isinstance(tags, str):
            return Fault(example.location, "wrong-tags", tags)
        return [*map(target.label_id, tags), *range(frames)]

    def positions(self, text: str, row: Any, source: SourceReader) -> Sequence[int]:
        return range(len(row))

    def column_dtypes(self, source: SourceReader, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        return {**super().column_dtypes(source, target, max_length), "target": "uint32"}


# What a label, numbers and tags are given for: texts, series of numbers, or media files.
LABELS = (LabelFormat(), SeriesLabelFormat(), MediaLabelFormat())
NUMBERS = (NumberFormat(), SeriesFormat(), MediaNumberFormat())
TAGS = (TagFormat(), SeriesTagFormat(), MediaTagFormat())
SERIES_WITH_GAPS = SeriesFormat(missing=True)


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
