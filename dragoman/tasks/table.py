"""The table of tasks: what data look like, which models fit, how batches are answered; a new task is a new row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from dragoman.data.batching import PAIRS, Form, Terms, TokenRows
from dragoman.data.bptt import RunningForm
from dragoman.data.collate import Frames, Pictures, Scalars, Series, Tags, TextsApart, TextsEnded
from dragoman.data.corpus import Corpus, Note, prepare
from dragoman.data.formats.formats import (
    PAIRS_SHAPE,
    LabelledShape,
    NumberedShape,
    RunningShape,
    SeriesShape,
    Shape,
    TaggedShape,
)
from dragoman.data.formats.media import CAPTIONS, TRANSCRIPTS
from dragoman.data.formats.single_text import TextShape
from dragoman.data.media.codec import Features
from dragoman.data.media.images import PictureConfig
from dragoman.data.tokenizers.labels import NumbersConfig
from dragoman.data.tokenizers.text_pair import Joined
from dragoman.data.tokenizers.tokenizer import PAD, Tokenizer
from dragoman.decoding.direct import LabelReadout, NumberReadout, Readout, TagReadout
from dragoman.decoding.fill_mask import FillReadout
from dragoman.layers.blocks import build_embedding
from dragoman.models.captioner import Captioner, CaptionerConfig
from dragoman.models.classifier import Classifier, ClassifierConfig, Regressor, SeriesInput
from dragoman.models.elmo import BiLM, BiLMConfig, ElmoEncoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from dragoman.models.encoders.bert import BertEncoderConfig
from dragoman.models.encoders.character_words import CharacterWordsEncoder
from dragoman.models.language_model import LanguageModel, LanguageModelConfig
from dragoman.models.masked_lm import MaskedLM, MaskedLMConfig, num_masked
from dragoman.models.non_autoregressive import NonAutoregressive, NonAutoregressiveConfig
from dragoman.models.tagger import Tagger, TaggerConfig
from dragoman.models.transcriber import Transcriber, TranscriberConfig
from dragoman.tasks.config import Config, encoder_of
from dragoman.training.distributed import ProcessGroup
from dragoman.training.loaders import BatchLoader, BpttLoader, ExampleLoader, check_lanes
from dragoman.training.validation.labels import LabelValidator
from dragoman.training.validation.lm import LanguageModelValidator
from dragoman.training.validation.mlm import MaskedLMValidator
from dragoman.training.validation.seq2seq import Seq2SeqValidator

Build = Callable[[Config, Tokenizer, Tokenizer], nn.Module]


@dataclass(frozen=True)
class Task:
    """One row: parts that do not know each other."""

    name: str
    shape_of: Callable[[Config], Shape]  # what examples look like
    form_of: Callable[[Config, Tokenizer], Form]  # how rows become batches
    models: Mapping[type, Build]
    readout: Readout | None = None  # how batches are answered; None: by search
    running: bool = False  # the data are one long text, which is gone on with, not rows to be answered
    measure: Callable[[Corpus, torch.device], Any] | None = None  # a validator of its own
    metrics: tuple[str, ...] = ()  # of a search: what an evaluation reports unless asked for others; none: the usual
    kinds: bool = False  # whether an evaluation also counts edits by kind
    loss: str = "token (nats)"  # what the loss is the mean over, and its unit

    def prepare(self, config: Config, note: Note = lambda doing, count: None) -> Corpus:
        """The data of a run, read and tokenised unless that was done before."""
        corpus = prepare(config.data, config.tokenizer, note, self.shape_of(config))
        if self.running:
            check_lanes(corpus, config.train.batch_tokens // segment_of(config) * config.train.accumulate, config.train)
        return replace(corpus, form=self.form_of(config, corpus.source_tokenizer))

    def model(self, config: Config, source: Tokenizer, target: Tokenizer) -> nn.Module:
        """The untrained model for these tokenizers, labels or numbers."""
        model = self.models[type(config.model)](config, source, target)
        reader = getattr(model, "encoder", None)
        if isinstance(reader, CharacterWordsEncoder):
            reader.embedding.folded = torch.tensor(folded(whole(config, source)))
        return model

    def validator(self, config: Config, corpus: Corpus, device: torch.device) -> Any:
        """What measures a model while it is trained."""
        if self.running:
            return LanguageModelValidator(corpus, segment_of(config), device)
        if self.measure is not None:
            return self.measure(corpus, device)
        if self.readout is not None:
            return LabelValidator(corpus, self.readout, config.train.metric, device)
        return Seq2SeqValidator(
            corpus, config.search, config.train.decode, device, config.data.units, config.train.metric
        )

    def loader(self, config: Config, corpus: Corpus, model: nn.Module, processes: ProcessGroup) -> BatchLoader:
        """Where the batches of training come from."""
        if self.running:
            return BpttLoader(corpus, model, segment_of(config), config.train, processes)
        return ExampleLoader(corpus, config.train)


# --- models

SEARCHED: dict[type, Any] = {
    EncoderDecoderConfig: EncoderDecoder,
    NonAutoregressiveConfig: NonAutoregressive,
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
        width = encoder_of(config).embedding
        embedding: nn.Module
        if isinstance(config.tokenizer.source, NumbersConfig):
            embedding = SeriesInput(width)
        else:
            embedding = build_embedding(len(whole(config, source)), width, PAD, source.space)
        words = source.separator if isinstance(source, Joined) else len(source)
        model: nn.Module = kind(config.model, embedding, len(target), keep_from=words)
        return model

    return build


def folded(source: Tokenizer) -> list[int]:
    """Of every token the one that spells it in lower case; itself where there is none."""
    pieces = source.pieces(range(len(source)))
    known = {piece: number for number, piece in enumerate(pieces)}
    return [known.get(piece.lower(), number) for number, piece in enumerate(pieces)]


def build_language_model(config: Config, source: Tokenizer, target: Tokenizer) -> nn.Module:
    """A model of running text."""
    assert isinstance(config.model, LanguageModelConfig)
    return LanguageModel(config.model, len(target))


def segment_of(config: Config) -> int:
    """Tokens of running text that are read at once."""
    assert isinstance(config.model, LanguageModelConfig)
    return config.model.segment


def build_pretrained(kind: Any) -> Build:
    """How a model that learns from texts alone is built."""

    def build(config: Config, source: Tokenizer, target: Tokenizer) -> nn.Module:
        model: nn.Module = kind(config.model, len(source))
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


def whole(config: Config, source: Tokenizer) -> Tokenizer:
    """The tokenizer whose tokens a model reads: what was trained on texts alone has <eos> between two, no separator."""
    pretrained = isinstance(encoder_of(config), BertEncoderConfig | ElmoEncoderConfig)
    return source.inner if isinstance(source, Joined) and pretrained else source


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
    if isinstance(config.model, ClassifierConfig) and config.model.texts == "apart":
        assert isinstance(source, Joined)
        return TextsApart(source.separator)
    if isinstance(source, Joined) and whole(config, source) is not source:
        return TextsEnded(source.separator)
    return TokenRows()


def told_terms(config: Config) -> Terms:
    """How many tokens of rows of these lengths are to be told."""
    model = config.model
    if isinstance(model, MaskedLMConfig):
        share = model.share
        return lambda source, target: (
            num_masked(source.astype(np.int64), share) + num_masked(target.astype(np.int64), share)
        )
    return lambda source, target: 2 * source.astype(np.int64) + 1  # each twice, and <eos> once


# --- the table


def text_shape(config: Config) -> TextShape:
    """How texts become rows."""
    return TextShape(config.data.max_length, getattr(config.model, "pairs", False))


_CLASSIFY, _REGRESS, _SERIES, _TAG = LabelledShape(), NumberedShape(), SeriesShape(), TaggedShape()
_RUNNING = RunningShape()

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
            models={ClassifierConfig: build_direct(Classifier)},
            readout=LabelReadout(),
            loss="example (nats)",
        ),
        Task(
            "regress",
            shape_of=lambda config: _SERIES if isinstance(config.tokenizer.source, NumbersConfig) else _REGRESS,
            form_of=lambda config, source: Form(source_form(config, source), Scalars(torch.float32)),
            models={ClassifierConfig: build_direct(Regressor)},
            readout=NumberReadout(),
            loss="number (squared error)",
        ),
        Task(
            "tag",
            shape_of=lambda config: _TAG,
            form_of=lambda config, source: Form(source_form(config, source), Tags()),
            models={TaggerConfig: build_direct(Tagger)},
            readout=TagReadout(),
            loss="word (nats)",
        ),
        Task(
            "language-model",
            shape_of=lambda config: _RUNNING,
            form_of=lambda config, source: RunningForm(),
            models={LanguageModelConfig: build_language_model},
            running=True,
        ),
        Task(
            "masked-language-model",
            shape_of=text_shape,
            form_of=lambda config, source: Form(terms=told_terms(config)),
            models={
                MaskedLMConfig: build_pretrained(MaskedLM),
                BiLMConfig: build_pretrained(BiLM),
            },
            readout=FillReadout(),
            loss="hidden token (nats)",
            measure=MaskedLMValidator,
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
            metrics=("bleu", "chrf", "meteor_exact_stem", "cider"),
        ),
    )
}


def task_of(config: Config) -> Task:
    """The row of a configuration."""
    return TASKS[config.task]


def model_for(config: Config, source: Tokenizer, target: Tokenizer) -> nn.Module:
    """The untrained model for these tokenizers."""
    return task_of(config).model(config, source, target)
