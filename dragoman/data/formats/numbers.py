"""Examples with numbers: series as sources of labels, tags and numbers, and numbers as targets of texts and series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.formats.base import ExampleFormat, Row, TokenizerPair, TrainingExamples, targets
from dragoman.data.formats.labels import LabelFormat
from dragoman.data.formats.tags import TagFormat
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.numbers import NumberScaler, NumbersConfig, number_error, series_shape
from dragoman.errors import ConfigError, DataError


def series_columns(config: DataConfig) -> None:
    """Raise an error for several columns of sources: several series are one column."""
    if len(config.columns) > 2:
        raise ConfigError(
            f"data.columns: found {len(config.columns)}, expected one series and its target; several series are one "
            'column with semicolons: "0.1;20 0.2;21"'
        )


def same_channels(items: Iterator[Example | Fault]) -> Iterator[Example | Fault]:
    """The examples; one whose series has more or fewer values in a step than the first becomes a fault."""
    first = 0
    for item in items:
        if isinstance(item, Example):
            channels = series_shape(item.source)[1]
            first = first or channels
            if channels != first:
                found = f"found {channels} numbers in a step of the series, expected {first} as in the first series"
                item = Fault(item.location, "not-a-number", found)
        yield item


def same_targets(items: Iterator[Example | Fault]) -> Iterator[Example | Fault]:
    """The examples; one with more or fewer numbers in its target than the first becomes a fault."""
    first = (0, 0)
    for item in items:
        if isinstance(item, Example):
            shape = series_shape(item.references[0])
            first = first if first != (0, 0) else shape
            if shape != first:
                found, expected = (f"{steps * width} numbers" for steps, width in (shape, first))
                text = item.references[0]
                detail = f"found '{text}' with {found} as the target, expected {expected} as in the first example"
                item = Fault(item.location, "not-a-number", detail)
        yield item


def check_shape(text: str, scaler: Any, location: str) -> None:
    """Raise an error for a series whose shape is not that of the training data."""
    if isinstance(scaler, NumberScaler) and (error := scaler.shape_error(text)):
        raise DataError(f"{location}: {error}")


class NumberFormat(LabelFormat):
    """One or two texts and one or more numbers."""

    name = "numbers"
    target = "number"

    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
        """The last of the columns holds the numbers, as many in every example."""
        return same_targets(super().read(config, entry, several_references))

    def validate(self, example: Example) -> Example | Fault:
        error = number_error(example.references[0])
        return Fault(example.location, "not-a-number", f"{error} as the target") if error else example

    def train_target(self, tokenizers: TokenizersConfig, examples: TrainingExamples) -> Tokenizer:
        config = tokenizers.target if isinstance(tokenizers.target, NumbersConfig) else NumbersConfig()
        scaler = NumberScaler.train(config, targets(examples, "learning the scale of numbers"))
        return with_steps(scaler, examples)

    def encode_target(self, text: str, target: Any) -> list[Any]:
        row: list[Any] = target.encode(text)
        return row

    def target_count(self, row: Row) -> int:
        return len(row[1])

    def encode(self, examples: Sequence[Example], source: SourceReader, target: Tokenizer) -> list[Row | Fault]:
        """The tokens of the texts or the numbers of the series, and the numbers of the target."""
        for example in examples:
            check_shape(example.references[0], target, f"{example.location}: target")
        return super().encode(examples, source, target)


def with_steps(scaler: NumberScaler, examples: TrainingExamples) -> NumberScaler:
    """The scaler of targets that have as many steps as that of the first example."""
    first = next(iter(examples.train("learning the scale of numbers")))
    return NumberScaler(scaler.config, scaler.shift, scaler.scale, series_shape(first.references[0])[0])


class SeriesSource(ExampleFormat):
    """For formats whose sources are series of numbers. With `missing`, "nan" is a missing value of a series."""

    missing = False

    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
        series_columns(config)
        return same_channels(super().read(config, entry, several_references))  # type: ignore[safe-super]

    def validate(self, example: Example) -> Example | Fault:
        if error := number_error(example.source, self.missing):
            return Fault(example.location, "not-a-number", f"{error} in the series")
        return super().validate(example)

    def encode(self, examples: Sequence[Example], source: SourceReader, target: Tokenizer) -> list[Row | Fault]:
        for example in examples:
            check_shape(example.source, source, example.location)
        return super().encode(examples, source, target)  # type: ignore[safe-super]

    def encode_inputs(
        self, texts: Sequence[str], source: SourceReader, first: int = 1
    ) -> tuple[list[list[Any]], list[list[Any]] | None]:
        for number, text in enumerate(texts, first):
            if error := number_error(text, self.missing):
                raise DataError(f"input {number}: {error}")
            check_shape(text, source, f"input {number}")
        return super().encode_inputs(texts, source, first)


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
        numbers = (f"{one.source} {one.references[0]}" for one in examples.train("learning the scale of numbers"))
        scaler = NumberScaler.train(tokenizers.source, numbers)
        return scaler, with_steps(scaler, examples)


class SeriesLabelFormat(SeriesSource, LabelFormat):
    """One or more series of numbers, and a label."""

    name = "series-labels"


class SeriesTagFormat(SeriesSource, TagFormat):
    """One or more series of numbers, and one tag per step. A step stands where a sentence has a word."""

    name = "series-tags"

    def positions(self, text: str, source: SourceReader) -> list[int]:
        return list(range(len(text.split())))

    def column_dtypes(self, source: SourceReader, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        return {**super().column_dtypes(source, target, max_length), "source": "float32"}
