"""Task `classify`: one label for one or two texts, a series of numbers, a recording or a picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dragoman.config.settings import setting
from dragoman.data.collate import ScalarCollator
from dragoman.data.formats.labels import LabelFormat, MediaLabelFormat, SeriesLabelFormat
from dragoman.decoding.labels import LabelDecoder
from dragoman.layers.pooling import StepWeightsConfig, TimeAttentionConfig
from dragoman.models.classifier import Classifier, ClassifierConfig
from dragoman.tasks.base import Automatic, Starter
from dragoman.tasks.labels import LabelFormats, LabelTask, NoSearchConfig


@dataclass(frozen=True)
class PooledTaskConfig(NoSearchConfig):
    """Settings of a task with one answer per example."""

    model: ClassifierConfig = setting(ClassifierConfig(), help="the model to train")
    reads_media = True
    reads_series = True

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not isinstance(self.model, ClassifierConfig):
            return
        if self.model.texts == "apart" and max(1, len(self.data.columns) - 1) != 2:
            yield 'model.texts: found "apart", expected two texts: name both in data.columns, and the target last'
        pooling, numbers = self.model.pooling, self.tokenizer.source.kind == "numbers"
        limit = pooling.steps if isinstance(pooling, TimeAttentionConfig | StepWeightsConfig) else 0
        if limit and self.data.max_length + (not numbers) > limit:
            eos = "" if numbers else ", <eos> included"
            yield (
                f"data.max_length: found {self.data.max_length}, but model.pooling.steps = {limit}{eos}; expected at "
                f"most {limit - (not numbers)}"
            )


@dataclass(frozen=True)
class ClassifyConfig(PooledTaskConfig):
    """Labelled texts, series, recordings or pictures."""

    task: Literal["classify"] = setting("classify", help="the kind of problem")
    output = "labels"


class Classify(LabelTask):
    """Texts, series, recordings or pictures to labels."""

    config = ClassifyConfig
    model_class = Classifier
    formats = LabelFormats(LabelFormat(), SeriesLabelFormat(), MediaLabelFormat())
    targets = ScalarCollator()
    head_decoder = LabelDecoder()
    loss_unit = "example (nats)"
    starter = Starter(
        "one or two texts with a label: sentiment, acceptability, paraphrase",
        {
            "task": "classify",
            "data": {"train": "labelled.tsv"},
            "tokenizer": {"source": {"kind": "words"}},
            "model": {"kind": ClassifierConfig.kind, "dropout": 0.4, "encoder": {"kind": "recurrent"}},
            "train": {"steps": 3000, "metric": "accuracy"},
        },
    )

    automatic = Automatic(
        {
            "tokenizer": {"source": {"kind": "words"}},
            "model": {
                "dropout": 0.4,
                "pooling": {"kind": "queries"},
                "encoder": {"kind": "recurrent", "embedding": 128, "width": 256},
            },
        },
        "model: a bidirectional LSTM of 256 over words with attention pooling, because few words decide a label",
    )

    automatic_series = Automatic(
        {
            "tokenizer": {"source": {"kind": "numbers"}},
            "model": {"pooling": {"kind": "queries"}, "encoder": {"kind": "recurrent", "embedding": 1, "width": 64}},
        },
        "model: a bidirectional LSTM of 64 over the numbers with attention pooling, because every source is a series",
    )
