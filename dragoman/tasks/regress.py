"""Task `regress`: one or more numbers for a text, a series of numbers, a recording or a picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from dragoman.classical.kalman import KalmanConfig, KalmanRegressor
from dragoman.config.settings import setting
from dragoman.data.collate import ScalarCollator
from dragoman.data.formats.base import ExampleFormat
from dragoman.data.formats.labels import MediaNumberFormat, NumberFormat, SeriesFormat
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.numbers import NumberScaler, NumbersConfig
from dragoman.decoding.labels import NumberDecoder
from dragoman.errors import ConfigError
from dragoman.models.classifier import ClassifierConfig, Regressor
from dragoman.tasks.base import Automatic, Config, Starter
from dragoman.tasks.classify import PooledTaskConfig
from dragoman.tasks.labels import LabelFormats, LabelTask


@dataclass(frozen=True)
class RegressConfig(PooledTaskConfig):
    """Texts, series, recordings or pictures with numbers."""

    task: Literal["regress"] = setting("regress", help="the kind of problem")
    model: ClassifierConfig | KalmanConfig = setting(ClassifierConfig(), help="the model to train")  # type: ignore[assignment]
    output = "numbers"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if isinstance(self.model, KalmanConfig):
            if not isinstance(self.tokenizer.source, NumbersConfig):
                yield f'model.kind: "kalman" reads numbers, found tokenizer.source = "{self.tokenizer.source.kind}"'
            return
        if self.model.label_smoothing:
            yield f"model.label_smoothing: found {self.model.label_smoothing}, expected 0: a number is not a label"


class Regress(LabelTask):
    """Texts, series, recordings or pictures to numbers."""

    config = RegressConfig
    model_class = Regressor
    formats = LabelFormats(NumberFormat(), SeriesFormat(), MediaNumberFormat())
    targets = ScalarCollator(torch.float32)
    head_decoder = NumberDecoder()
    loss_unit = "number (squared error)"
    starter = Starter(
        "texts or series of numbers with a number: similarity, the next value",
        {
            "task": "regress",
            "data": {"train": "numbers.tsv"},
            "tokenizer": {"source": {"kind": "numbers"}},
            "model": {"kind": ClassifierConfig.kind, "encoder": {"kind": "recurrent", "embedding": 1, "width": 32}},
            "train": {"steps": 3000, "metric": "mse"},
        },
    )

    automatic = Automatic(
        {
            "tokenizer": {"source": {"kind": "words"}},
            "model": {"dropout": 0.2, "encoder": {"kind": "recurrent", "embedding": 128, "width": 256}},
        },
        "model: a bidirectional LSTM of 256 over words with mean pooling",
    )
    automatic_series = Automatic(
        {
            "tokenizer": {"source": {"kind": "numbers"}},
            "model": {
                "pooling": {"kind": "attention"},
                "encoder": {"kind": "recurrent", "embedding": 1, "width": 32, "direction": "forward", "dropout": 0.0},
            },
        },
        "model: an LSTM of 32 over the numbers with attention over time, because every source is a series",
    )

    def model(self, config: Config, source: SourceReader, target: Tokenizer) -> nn.Module:
        if isinstance(config.model, KalmanConfig):
            assert isinstance(target, NumberScaler)
            if target.channels != source.channels:
                raise ConfigError(
                    f'model.kind: "kalman" forecasts all series, found {source.channels} numbers in a step of the '
                    f"source and {target.channels} in one of the target"
                )
            return KalmanRegressor(config.model, source.channels, max(1, target.steps))
        return super().model(config, source, target)

    def example_format(self, config: Config) -> ExampleFormat:
        is_kalman = isinstance(config.model, KalmanConfig)  # it reads series with gaps
        return SeriesFormat(missing=True) if is_kalman else super().example_format(config)
