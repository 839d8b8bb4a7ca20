"""The table of tasks: what data look like, which models fit, how batches are answered; a new task is a new row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dragoman.config import Config
from dragoman.data.batches import PAIRS, Form, TokenRows
from dragoman.data.codecs import NumbersConfig
from dragoman.data.corpus import Corpus, Note, prepare
from dragoman.data.forms import Frames, Pictures, Scalars, Series, Tags, TextsApart
from dragoman.data.images import PictureConfig
from dragoman.data.joined import Joined
from dragoman.data.media_codec import Features
from dragoman.data.media_shape import CAPTIONS, TRANSCRIPTS
from dragoman.data.shapes import (
    PAIRS_SHAPE,
    LabelledShape,
    NumberedShape,
    SeriesShape,
    Shape,
    TaggedShape,
)
from dragoman.data.tokenizers import PAD, Tokenizer
from dragoman.layers.blocks import build_embedding
from dragoman.models.captioner import Captioner, CaptionerConfig
from dragoman.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from dragoman.models.instant import Instant, InstantConfig
from dragoman.models.pooled import Classifier, PooledConfig, Regressor, SeriesInput
from dragoman.models.tagger import Tagger, TaggerConfig
from dragoman.models.transcriber import Transcriber, TranscriberConfig
from dragoman.search.readout import LabelReadout, NumberReadout, Readout, TagReadout
from dragoman.training.answers import AnswerValidator
from dragoman.training.validation import Validator

Build = Callable[[Config, Tokenizer, Tokenizer], nn.Module]


@dataclass(frozen=True)
class Task:
    """One row: parts that do not know each other."""

    name: str
    shape_of: Callable[[Config], Shape]  # what examples look like
    form_of: Callable[[Config, Tokenizer], Form]  # how rows become batches
    models: Mapping[type, Build]
    readout: Readout | None = None  # how batches are answered; None: by search
    metrics: tuple[str, ...] = ()  # of a search: what an evaluation reports unless asked for others; none: the usual
    kinds: bool = False  # whether an evaluation also counts edits by kind

    def prepare(self, config: Config, note: Note = lambda doing, count: None) -> Corpus:
        """The data of a run, read and tokenised unless that was done before."""
        corpus = prepare(config.data, config.tokenizer, note, self.shape_of(config))
        return replace(corpus, form=self.form_of(config, corpus.source_tokenizer))

    def model(self, config: Config, source: Tokenizer, target: Tokenizer) -> nn.Module:
        """The untrained model for these tokenizers, labels or numbers."""
        return self.models[type(config.model)](config, source, target)

    def validator(self, config: Config, corpus: Corpus, device: torch.device) -> Any:
        """What measures a model while it is trained."""
        if self.readout is not None:
            return AnswerValidator(corpus, self.readout, config.train.metric, device)
        return Validator(corpus, config.search, config.train.decode, device, config.data.units)


# --- models

SEARCHED: dict[type, Any] = {
    EncoderDecoderConfig: EncoderDecoder,
    InstantConfig: Instant,
}


def build_model(
    config: Config, source_vocabulary: int, target_vocabulary: int, *, tags: int = 0, space: int | None = None
) -> nn.Module:
    """The untrained model of pairs that a configuration describes; what is known only from data comes as arguments."""
    kind = SEARCHED[type(config.model)]
    model: nn.Module = kind(config.model, source_vocabulary, target_vocabulary, tags=tags, space=space)
    return model


def build_searched(config: Config, source: Tokenizer, target: Tokenizer) -> nn.Module:
    """A model of pairs."""
    return build_model(config, len(source), len(target), tags=len(source.tags), space=source.space)


def build_direct(kind: Any) -> Build:
    """How a model that answers directly is built."""

    def build(config: Config, source: Tokenizer, target: Tokenizer) -> nn.Module:
        encoder: Any = config.model.encoder
        width = encoder.embedding
        embedding: nn.Module
        if isinstance(config.tokenizer.source, NumbersConfig):
            embedding = SeriesInput(width)
        else:
            embedding = build_embedding(len(source), width, PAD, source.space)
        words = source.separator if isinstance(source, Joined) else len(source)
        model: nn.Module = kind(config.model, embedding, len(target), keep_from=words)
        return model

    return build


def build_reader(kind: Any) -> Build:
    """How a model that reads features is built; the codec knows their scale."""

    def build(config: Config, source: Tokenizer, target: Tokenizer) -> nn.Module:
        assert isinstance(source, Features)
        model: Any = kind(config.model, len(source), len(target))
        model.standard.learn(*source.scale)
        return model  # type: ignore[no-any-return]

    return build


# --- forms


def feature_form(source: Any) -> Form:
    """How features and the tokens that answer them stand in a batch."""
    assert isinstance(source, Features)
    reader = source.config
    if isinstance(reader, PictureConfig):
        return Form(Pictures(reader.size, reader.features))
    return Form(Frames(reader.features, reader.dtype))


def source_form(config: Config, source: Tokenizer) -> Any:
    """How sources that are answered directly stand in a batch."""
    if isinstance(config.tokenizer.source, NumbersConfig):
        return Series()
    if isinstance(config.model, PooledConfig) and config.model.texts == "apart":
        assert isinstance(source, Joined)
        return TextsApart(source.separator)
    return TokenRows()


# --- the table

_CLASSIFY, _REGRESS, _SERIES, _TAG = LabelledShape(), NumberedShape(), SeriesShape(), TaggedShape()

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "translate",
            shape_of=lambda config: PAIRS_SHAPE,
            form_of=lambda config, source: PAIRS,
            models=dict.fromkeys(SEARCHED, build_searched),
        ),
        Task(
            "classify",
            shape_of=lambda config: _CLASSIFY,
            form_of=lambda config, source: Form(source_form(config, source), Scalars()),
            models={PooledConfig: build_direct(Classifier)},
            readout=LabelReadout(),
        ),
        Task(
            "regress",
            shape_of=lambda config: _SERIES if isinstance(config.tokenizer.source, NumbersConfig) else _REGRESS,
            form_of=lambda config, source: Form(source_form(config, source), Scalars(torch.float32)),
            models={PooledConfig: build_direct(Regressor)},
            readout=NumberReadout(),
        ),
        Task(
            "tag",
            shape_of=lambda config: _TAG,
            form_of=lambda config, source: Form(source_form(config, source), Tags()),
            models={TaggerConfig: build_direct(Tagger)},
            readout=TagReadout(),
        ),
        Task(
            "transcribe",
            shape_of=lambda config: TRANSCRIPTS,
            form_of=lambda config, source: feature_form(source),
            models={TranscriberConfig: build_reader(Transcriber)},
            metrics=("wer", "cer", "exact_match"),
            kinds=True,
        ),
        Task(
            "caption",
            shape_of=lambda config: CAPTIONS,
            form_of=lambda config, source: feature_form(source),
            models={CaptionerConfig: build_reader(Captioner)},
            metrics=("bleu", "chrf", "meteor", "cider"),
        ),
    )
}


def task_of(config: Config) -> Task:
    """The row of a configuration."""
    return TASKS[config.task]


def model_for(config: Config, source: Tokenizer, target: Tokenizer) -> nn.Module:
    """The untrained model for these tokenizers."""
    return task_of(config).model(config, source, target)
