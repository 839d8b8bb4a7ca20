"""Tasks `classify`, `regress` and `tag`: texts, series, recordings or pictures to labels, numbers or tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from dragoman.base import ConfigError
from dragoman.base.config import Table, imported, setting
from dragoman.data import SourceReader
from dragoman.data.formats import LABELS, NUMBERS, SERIES_WITH_GAPS, TAGS, ExampleFormat
from dragoman.data.media import PictureConfig, extractor_of
from dragoman.data.tokenizers import PAD, NumberScaler, NumbersConfig, Tokenizer
from dragoman.decoding import LabelDecoder, NumberDecoder, TagDecoder
from dragoman.runs.tasks.base import MEDIA, Automatic, Config, Starter, Task, encoder_of, over_limit, too_long
from dragoman.runs.tasks.translate import set_lower_case

if TYPE_CHECKING:
    import torch
    from torch import nn

    from dragoman.data import Collator, Corpus
    from dragoman.training import Validator

# Nothing here imports torch before a network needs it: a fitted model predicts without.


class ModelEntry(NamedTuple):
    """A kind of model: its settings, and its class."""

    config: Any
    # Of labels: (config, module that reads the sources, number of outputs, keep_from=…). Of texts: (config, size of the
    # vocabulary). A fitted model: its own.
    model: Callable[..., Any]


def late_models(addresses: Mapping[str, str]) -> Table[str, ModelEntry]:
    """A table of late entries, by their kinds: each "module:Config,Model" of the package."""
    late = {kind: imported(ModelEntry, f"dragoman.{address}") for kind, address in addresses.items()}
    return Table("model", lambda entry: [entry.config.kind], late=late)


CLASSIFIERS = late_models({"classifier": "models.classifier:ClassifierConfig,Classifier"})
REGRESSORS = late_models(
    {
        "classifier": "models.classifier:ClassifierConfig,Regressor",
        "kalman": "classical.kalman:KalmanConfig,KalmanRegressor",
    }
)
TAGGERS = late_models(
    {"tagger": "models.tagger:TaggerConfig,Tagger", "hmm": "classical.hmm_tagger:HMMTaggerConfig,HMMTagger"}
)


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
        searching = ("train.decode", "data.units", "search")
        yield from self.unused_settings(searching, f"configures a search, and {self.task_setting} has none")
        encoder = getattr(self.model, "encoder", None)
        if encoder is None:  # a fitted model
            return
        from dragoman.models.layers import NoAugmentationConfig
        from dragoman.runs.tasks.media import READ_BY, feature_problems

        features = media or type(encoder) in READ_BY
        if (features or numbers) and getattr(self.model, "word_dropout", False):
            units = "features" if features else "numbers"
            yield f"model.word_dropout: found {self.model.word_dropout}, expected 0: {units} are not words"
        if features:
            yield from feature_problems(self)
            return
        if getattr(self.model, "augment", NoAugmentationConfig()) != NoAugmentationConfig():
            yield "model.augment: changes recordings and pictures, not text or numbers; leave it out"
        if numbers and (encoder.kind == "character-words" or encoder.embedding == 0):
            yield "model.encoder: reads numbers, expected an embedding of at least 1 and no 'character-words'"
        ends = 0 if numbers else 1 + getattr(self.model, "next_sentence", False)  # <eos> of each text
        yield from too_long(self, "encoder", encoder, ends + getattr(encoder, "separators", 1) - 1)


def read_tokenizer(config: Config, source: SourceReader) -> SourceReader:
    """The tokenizer of the model's input: a pre-trained encoder separates two texts by <eos>, not by a separator."""
    pretrained = getattr(encoder_of(config), "kind", "") in ("bert", "elmo")
    return source.innermost if pretrained else source


def build_inputs(config: Config, size: int, space: int | None = None) -> nn.Module:
    """What reads tokens of a vocabulary of this size, or series with so many numbers in a step."""
    from dragoman.models import SeriesInput
    from dragoman.models.layers import build_embedding

    width = encoder_of(config).embedding
    if isinstance(config.tokenizer.source, NumbersConfig):
        return SeriesInput(width, size)
    return build_embedding(size, width, PAD, space, sides=("source",))


class LabelTask(Task):
    """A task whose model reads text, numbers or features and answers without a search."""

    models: ClassVar[Table[str, ModelEntry]]
    formats: ClassVar[tuple[ExampleFormat, ExampleFormat, ExampleFormat]]  # of texts, series and media

    def example_format(self, config: Config) -> ExampleFormat:
        source, (text, series, media) = config.tokenizer.source, self.formats
        return series if isinstance(source, NumbersConfig) else media if isinstance(source, MEDIA) else text

    def collator(self, config: Config, source: SourceReader) -> Collator:
        from dragoman.data import Collator, source_collator

        apart = getattr(config.model, "texts", "joined") == "apart"
        ends = getattr(encoder_of(config), "separators", 1) if read_tokenizer(config, source) is not source else 0
        return Collator(source_collator(source, apart, ends), self.example_format(config).target_collator)

    def model(self, config: Config, source: SourceReader, target: Tokenizer) -> Any:
        from dragoman.models import FeatureInput

        inputs: nn.Module
        if source.reads_files:
            inputs = FeatureInput(len(source), config.model.augment, extractor_of(source).scale)
        else:
            numbers = isinstance(config.tokenizer.source, NumbersConfig)
            size = source.channels if numbers else len(read_tokenizer(config, source))
            inputs = build_inputs(config, size, source.space)
        words = len(source) if source.separator is None else source.separator
        model: nn.Module = self.models.of(config.model).model(config.model, inputs, len(target), keep_from=words)
        return set_lower_case(model, read_tokenizer(config, source))

    def untrained(self, config: Config, source: int, target: int) -> Any:
        return self.models.of(config.model).model(config.model, build_inputs(config, source), target, keep_from=source)

    def validator(self, config: Config, corpus: Corpus, device: torch.device) -> Validator:
        from dragoman.training import LabelValidator

        assert self.head_decoder is not None
        return LabelValidator(corpus, self.head_decoder, config.train.metric, device)


@dataclass(frozen=True)
class PooledTaskConfig(NoSearchConfig):
    """Settings of a task with one answer per example."""

    model: Annotated[Any, CLASSIFIERS] = setting(
        default_factory=lambda: CLASSIFIERS["classifier"].config(), help="the model to train"
    )
    may_resplit = True
    reads_media = True
    reads_series = True

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.model.kind != "classifier":
            return
        if self.model.texts == "apart" and max(1, len(self.data.columns) - 1) != 2:
            yield 'model.texts: found "apart", expected two texts: name both in data.columns, and the target last'
        numbers, limit = self.tokenizer.source.kind == "numbers", getattr(self.model.pooling, "steps", 0)
        yield from over_limit(self, "model.pooling.steps", limit or None, int(not numbers))


@dataclass(frozen=True)
class ClassifyConfig(PooledTaskConfig):
    """Labelled texts, series, recordings or pictures."""

    task: Literal["classify"] = setting("classify", help="the kind of problem")
    output = "labels"


class Classify(LabelTask):
    """Texts, series, recordings or pictures to labels."""

    config = ClassifyConfig
    models = CLASSIFIERS
    formats = LABELS
    head_decoder = LabelDecoder()
    loss_unit = "example (nats)"
    starter = Starter(
        "one or two texts with a label: sentiment, acceptability, paraphrase",
        {
            "data": {"train": "labelled.tsv"},
            "tokenizer": {"source": {"kind": "words"}},
            "model": {"kind": "classifier", "dropout": 0.4, "encoder": {"kind": "recurrent"}},
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


@dataclass(frozen=True)
class RegressConfig(PooledTaskConfig):
    """Texts, series, recordings or pictures with numbers."""

    task: Literal["regress"] = setting("regress", help="the kind of problem")
    model: Annotated[Any, REGRESSORS] = setting(
        default_factory=lambda: REGRESSORS["classifier"].config(), help="the model to train"
    )
    output = "numbers"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.model.kind == "kalman":
            if not isinstance(self.tokenizer.source, NumbersConfig):
                yield f'model.kind: "kalman" reads numbers, found tokenizer.source = "{self.tokenizer.source.kind}"'
            return
        if self.model.label_smoothing:
            yield f"model.label_smoothing: found {self.model.label_smoothing}, expected 0: a number is not a label"
        if self.model.head != "softmax":
            yield f"model.head: found {self.model.head!r}, which tells two labels apart; leave it out for numbers"


class Regress(LabelTask):
    """Texts, series, recordings or pictures to numbers."""

    config = RegressConfig
    models = REGRESSORS
    formats = NUMBERS
    head_decoder = NumberDecoder()
    loss_unit = "number (squared error)"
    starter = Starter(
        "texts or series of numbers with a number: similarity, the next value",
        {
            "data": {"train": "numbers.tsv"},
            "tokenizer": {"source": {"kind": "numbers"}},
            "model": {"kind": "classifier", "encoder": {"kind": "recurrent", "embedding": 1, "width": 32}},
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

    def model(self, config: Config, source: SourceReader, target: Tokenizer) -> Any:
        if config.model.kind == "kalman":
            assert isinstance(target, NumberScaler)
            if target.channels != source.channels:
                raise ConfigError(
                    f'model.kind: "kalman" forecasts all series, found {source.channels} numbers in a step of the '
                    f"source and {target.channels} in one of the target"
                )
            return self.models.of(config.model).model(config.model, source.channels, max(1, target.steps))
        return super().model(config, source, target)

    def example_format(self, config: Config) -> ExampleFormat:
        is_kalman = config.model.kind == "kalman"  # it reads series with gaps
        return SERIES_WITH_GAPS if is_kalman else super().example_format(config)


@dataclass(frozen=True)
class TagConfig(NoSearchConfig):
    """Tagged sentences, series or recordings."""

    task: Literal["tag"] = setting("tag", help="the kind of problem")
    model: Annotated[Any, TAGGERS] = setting(
        default_factory=lambda: TAGGERS["tagger"].config(), help="the model to train"
    )
    output = "tags"
    reads_media = True
    reads_series = True

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        source, model = self.tokenizer.source, self.model
        if isinstance(source, PictureConfig):
            yield f'tokenizer.source: found "{source.kind}", which has no frames to tag; expected recordings or text'
        if isinstance(source, NumbersConfig) and getattr(model, "read", "first") != "first":
            yield "model.read: found 'mean', but steps have one vector each; leave it out"
        if model.kind == "hmm":
            yield from self.unused_settings(["train.start_from"], 'has no meaning for model.kind = "hmm"')
        if model.kind == "hmm" and isinstance(source, (NumbersConfig, *MEDIA)):
            yield f'model.kind: "hmm" reads words, found tokenizer.source = "{source.kind}"; take model.kind=tagger'


class Tag(LabelTask):
    """Words to tags."""

    config = TagConfig
    models = TAGGERS
    formats = TAGS
    head_decoder = TagDecoder()
    loss_unit = "word (nats)"
    starter = Starter(
        "words with a tag each: parts of speech, names",
        {
            "data": {"train": "words.tsv", "max_length": 1000},
            "tokenizer": {"source": {"kind": "characters"}},
            "model": {"kind": "tagger", "crf": True, "encoder": {"kind": "character-words"}},
            "train": {"steps": 3000, "metric": "accuracy"},
        },
    )

    automatic = Automatic(
        {
            "data": {"max_length": 1000},
            "tokenizer": {"source": {"kind": "characters"}},
            "model": {
                "encoder": {
                    "kind": "character-words", "embedding": 32, "kernels": [2, 3, 4], "filters": [64, 64, 64],
                    "longest_word": 24, "hashed": 50_000, "hashed_dropout": 0.3, "dropout": 0.3,
                    "inner": {"kind": "recurrent", "embedding": 128, "width": 256, "dropout": 0.3},
                },
            },
        },
        "model: a bidirectional LSTM of 256 over words built from characters, because endings show the tags of unseen "
        "words",
    )  # fmt: skip

    automatic_series = Automatic(
        {
            "tokenizer": {"source": {"kind": "numbers"}},
            "model": {"encoder": {"kind": "recurrent", "embedding": 1, "width": 64}},
        },
        "model: a bidirectional LSTM of 64 over the numbers, because every source is a series",
    )

    def model(self, config: Config, source: SourceReader, target: Tokenizer) -> Any:
        if config.model.kind == "hmm":
            return self.models.of(config.model).model(config.model, source, len(target))
        return super().model(config, source, target)
