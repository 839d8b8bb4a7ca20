"""What classify, regress and tag share: sources of text, numbers or features, and outputs without a search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from dragoman.data.collate import (
    Collator,
    ColumnCollator,
    ConcatenatedTextsCollator,
    SeparateTextsCollator,
    SeriesCollator,
    SourceCollator,
    TokenCollator,
)
from dragoman.data.corpus import Corpus
from dragoman.data.formats.base import ExampleFormat
from dragoman.data.media.feature_extractor import extractor_of
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import PAD, Tokenizer
from dragoman.data.tokenizers.numbers import NumbersConfig
from dragoman.decoding.config import SearchConfig
from dragoman.layers.augmentation import NoAugmentationConfig
from dragoman.layers.embeddings import build_embedding
from dragoman.models.classifier import ClassifierConfig
from dragoman.models.encoders.bert import BertEncoderConfig
from dragoman.models.encoders.character_words import CharacterWordsConfig
from dragoman.models.encoders.elmo import ElmoEncoderConfig
from dragoman.models.sources import FeatureInput, SeriesInput
from dragoman.tasks.base import MEDIA, Config, Task, encoder_of, too_long
from dragoman.tasks.media import READ_BY, feature_collator, feature_problems
from dragoman.tasks.translate import set_lower_case
from dragoman.training.config import TrainConfig
from dragoman.training.validation.labels import LabelValidator
from dragoman.training.validation.result import Validator


@dataclass(frozen=True)
class NoSearchConfig(Config):
    """Settings of a task whose model answers without a search."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        numbers, media = isinstance(self.tokenizer.source, NumbersConfig), isinstance(self.tokenizer.source, MEDIA)
        if self.data.media and not media and self.reads_media:
            kind = self.tokenizer.source.kind
            yield f'data.media: goes with recordings and pictures, found tokenizer.source = "{kind}"'
        target = self.tokenizer.target
        if target is not None and not (self.task == "regress" and isinstance(target, NumbersConfig)):
            expected = 'kind = "numbers" or nothing' if self.task == "regress" else "nothing: its targets are not text"
            yield f"tokenizer.target: found {target.kind!r} with {self.task_setting}, expected {expected}"
        unused = {
            "train.decode": (self.train.decode, TrainConfig().decode),
            "data.units": (self.data.units, "words"),
            "search": (self.search, SearchConfig()),
        }
        yield from self.unused_settings(unused, f"configures a search, and {self.task_setting} has none")
        encoder = getattr(self.model, "encoder", None)
        if encoder is None:  # a fitted model
            return
        features = media or type(encoder) in READ_BY
        if (features or numbers) and getattr(self.model, "word_dropout", False):
            units = "features" if features else "numbers"
            yield f"model.word_dropout: found {self.model.word_dropout}, expected 0: {units} are not words"
        if features:
            yield from feature_problems(self)
            return
        augment = getattr(self.model, "augment", NoAugmentationConfig())
        yield from self.unused_settings(
            {"model.augment": (augment, NoAugmentationConfig())}, "changes recordings and pictures, not text or numbers"
        )
        if numbers and (isinstance(encoder, CharacterWordsConfig) or encoder.embedding == 0):
            yield "model.encoder: reads numbers, expected an embedding of at least 1 and no 'character-words'"
        ends = 0 if numbers else 1 + getattr(self.model, "next_sentence", False)  # <eos> of each text
        yield from too_long(self, "encoder", encoder, ends + getattr(encoder, "separators", 1) - 1)


def read_tokenizer(config: Config, source: SourceReader) -> SourceReader:
    """The tokenizer of the model's input: a pre-trained encoder separates two texts by <eos>, not by a separator."""
    pretrained = isinstance(encoder_of(config), BertEncoderConfig | ElmoEncoderConfig)
    return source.innermost if pretrained else source


def source_collator(config: Config, source: SourceReader) -> SourceCollator:
    if source.reads_files:
        return feature_collator(extractor_of(source))
    if isinstance(config.tokenizer.source, NumbersConfig):
        return SeriesCollator(source.channels)
    if isinstance(config.model, ClassifierConfig) and config.model.texts == "apart":
        assert source.separator is not None
        return SeparateTextsCollator(source.separator)
    if source.separator is not None and read_tokenizer(config, source) is not source:
        return ConcatenatedTextsCollator(source.separator, getattr(encoder_of(config), "separators", 1))
    return TokenCollator()


class LabelFormats(NamedTuple):
    """The data formats of a task by its kind of source."""

    text: ExampleFormat
    series: ExampleFormat
    media: ExampleFormat


class LabelTask(Task):
    """A task whose model reads text, numbers or features and answers without a search."""

    model_class: ClassVar[Any]
    formats: ClassVar[LabelFormats]
    targets: ClassVar[ColumnCollator]

    def example_format(self, config: Config) -> ExampleFormat:
        source = config.tokenizer.source
        if isinstance(source, NumbersConfig):
            return self.formats.series
        return self.formats.media if isinstance(source, MEDIA) else self.formats.text

    def collator(self, config: Config, source: SourceReader) -> Collator:
        return Collator(source_collator(config, source), self.targets)

    def model(self, config: Config, source: SourceReader, target: Tokenizer) -> nn.Module:
        inputs: nn.Module
        if source.reads_files:
            inputs = FeatureInput(len(source), config.model.augment, extractor_of(source).scale)
        elif isinstance(config.tokenizer.source, NumbersConfig):
            inputs = SeriesInput(encoder_of(config).embedding, source.channels)
        else:
            width = encoder_of(config).embedding
            inputs = build_embedding(len(read_tokenizer(config, source)), width, PAD, source.space)
        words = len(source) if source.separator is None else source.separator
        model: nn.Module = self.model_class(config.model, inputs, len(target), keep_from=words)
        return set_lower_case(model, read_tokenizer(config, source))

    def validator(self, config: Config, corpus: Corpus, device: torch.device) -> Validator:
        assert self.head_decoder is not None
        return LabelValidator(corpus, self.head_decoder, config.train.metric, device)
