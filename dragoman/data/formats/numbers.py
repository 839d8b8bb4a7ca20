"""Regression examples: one or two texts, or a series of numbers, and a number."""

from __future__ import annotations

from typing import Any

from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.examples import Example, Fault
from dragoman.data.formats.base import TokenizerPair, TrainingExamples, targets
from dragoman.data.formats.labels import LabelFormat
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.numbers import NumberScaler, NumbersConfig, number_error


class NumberFormat(LabelFormat):
    """One or two texts, or a series of numbers, and a number."""

    name = "numbers"
    target = "number"

    def validate(self, example: Example) -> Example | Fault:
        """The target must be one number."""
        text = example.references[0]
        error = number_error(text) or ("" if len(text.split()) == 1 else f"found '{text}', expected one number")
        return Fault(example.location, "not-a-number", f"{error} as the target") if error else example

    def train_tokenizers(
        self, config: DataConfig, tokenizers: TokenizersConfig, examples: TrainingExamples
    ) -> TokenizerPair:
        """Source vocabulary and target scale; a series without a target tokenizer shares one scale with its target."""
        if isinstance(tokenizers.source, NumbersConfig) and tokenizers.target is None:
            numbers = (
                f"{example.source} {example.references[0]}"
                for example in examples.train("learning the scale of numbers")
            )
            scaler: Tokenizer = NumberScaler.train(tokenizers.source, numbers)
            return scaler, scaler
        return super().train_tokenizers(config, tokenizers, examples)

    def train_target(self, tokenizers: TokenizersConfig, examples: TrainingExamples) -> Tokenizer:
        """The scale of the targets."""
        config = tokenizers.target if isinstance(tokenizers.target, NumbersConfig) else NumbersConfig()
        return NumberScaler.train(config, targets(examples, "learning the scale of numbers"))

    def encode_target(self, text: str, target: Any) -> list[Any]:
        """The scaled number."""
        row: list[Any] = target.encode(text)
        return row


class SeriesFormat(NumberFormat):
    """A series of numbers and a number."""

    name = "series"

    def validate(self, example: Example) -> Example | Fault:
        """Source and target must be numbers."""
        if error := number_error(example.source):
            return Fault(example.location, "not-a-number", f"{error} in the series")
        return super().validate(example)
