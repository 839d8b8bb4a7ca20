"""What every task has: settings, a data format, models, validation and a starter configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, get_args

from dragoman.base import Mend, Problem, suggestion
from dragoman.base.config import setting
from dragoman.data import COLUMNS, DataConfig, SourceReader, TokenizersConfig
from dragoman.data.formats import ExampleFormat
from dragoman.data.media import MediaConfig
from dragoman.data.tokenizers import CharactersConfig, NumbersConfig, RunTokenizerConfig, Tokenizer
from dragoman.decoding import SearchConfig
from dragoman.scoring import OutputKind, Units, checkpoint_metrics, metrics_by_name
from dragoman.training import TrainConfig
from dragoman.training.objectives import LikelihoodConfig

if TYPE_CHECKING:
    import torch
    from torch import nn

    from dragoman.base import Progress
    from dragoman.data import Collator, Corpus
    from dragoman.decoding import HeadDecoder
    from dragoman.training import BatchLoader, ProcessGroup, Validator

MEDIA: tuple[type[MediaConfig], ...] = get_args(MediaConfig)


@dataclass(frozen=True)
class Config:
    """All settings of a run. With the data they determine the trained weights.

    Each task has a subclass, which declares the models of the task and checks its settings (`problems`).
    """

    data: DataConfig = setting(help="where the examples are")
    task: str = setting("", help="the kind of problem")
    tokenizer: TokenizersConfig = setting(TokenizersConfig(), help="how text becomes tokens")
    model: Any = setting(None, help="the model to train; without a kind, the usual one of the task")
    train: TrainConfig = setting(TrainConfig(), help="how to train it")
    search: SearchConfig = setting(SearchConfig(), help="how to decode its output")
    output: ClassVar[OutputKind | None] = None  # what the model puts out, which decides its metrics; None: text
    reads_media: ClassVar[bool] = False  # whether sources are recordings or images
    reads_series: ClassVar[bool] = False  # whether sources may be series of numbers
    uses_tags: ClassVar[bool] = False  # whether data files may have language tags
    may_resplit: ClassVar[bool] = False  # whether BPE-dropout may split words anew: no target counts their pieces

    @property
    def task_setting(self) -> str:
        """The task as an error message names it."""
        return f'task = "{self.task}"'

    @classmethod
    def metrics(cls, units: Units = "words") -> tuple[str, ...]:
        """The metrics that may select the best weights (train.metric), loss first."""
        return checkpoint_metrics(cls.output or units)

    def problems(self) -> Iterator[str]:
        metric, metrics = self.train.metric, self.metrics(self.data.units)
        if metric not in metrics and metric in self.metrics("phonemes"):
            yield f'train.metric: found "{metric}", which needs data.units = "phonemes"'
        elif metric not in metrics:
            match = suggestion(metric, metrics) if metric not in metrics_by_name() else ""
            yield f'train.metric: found "{metric}", but {self.task_setting} has {", ".join(metrics)}{match}'
        if getattr(self.model, "fitted", False) and not isinstance(self.train.objective, LikelihoodConfig):
            yield f'train.objective: "{self.train.objective.kind}" trains by gradients, "{self.model.kind}" has none'
        else:
            yield from self.train.objective.conflicts(self)
        if self.data.has_tags and not self.uses_tags:
            yield f'data.train: found a tag, which only task = "translate" uses; found {self.task_setting}'
        yield from self._dropout_problems()
        if self.data.reads_more and not self.uses_tags:
            yield f'data.context and data.memory: only task = "translate" uses them; found {self.task_setting}'
        encoder, source = encoder_of(self), self.tokenizer.source
        if isinstance(source, NumbersConfig) and not (self.reads_series or self.reads_media):
            yield (
                'tokenizer.source: found "numbers", which task = "classify", "regress" or "tag" reads; found '
                f"{self.task_setting}"
            )
        units = source.tokenizer_kind if isinstance(source, RunTokenizerConfig) else source.kind
        if getattr(encoder, "kind", "") == "character-words" and units not in (CharactersConfig.kind, ""):
            mend = Mend("tokenizer.source.kind", "characters", "source: characters, of which the encoder makes words")
            yield Problem(
                f"model.encoder: {encoder.kind!r} reads characters, found tokenizer.source = {units!r}; "
                'set tokenizer.source.kind = "characters"',
                mend,
            )
        if not self.reads_media and (self.data.media or isinstance(source, MEDIA)):
            name = "data.media" if self.data.media else f'tokenizer.source: found "{source.kind}", which'
            yield (
                f'{name} goes with task = "transcribe", "caption", "classify", "regress" or "tag"; found '
                f"{self.task_setting}"
            )

    def _dropout_problems(self) -> Iterator[str]:
        """Errors for BPE-dropout where no epoch can split words anew."""
        softmax = getattr(self.model, "softmax", None)
        reasons = {
            f"{self.task_setting} counts the pieces of a word": not self.may_resplit,
            f'model.kind = "{self.model.kind}" has no epochs': getattr(self.model, "fitted", False),
            'model.softmax = "partitioned" knows the words of each part': getattr(softmax, "kind", "") == "partitioned",
        }
        for side in COLUMNS:
            if dropout := getattr(getattr(self.tokenizer, side), "dropout", 0.0):
                for reason in (reason for reason, holds in reasons.items() if holds):
                    yield f"tokenizer.{side}.dropout: found {dropout:g}, but {reason}; leave it out"

    def unused_settings(self, places: Sequence[str], reason: str) -> Iterator[str]:
        """Errors for settings that this task ignores.

        A setting that repeats its default passes: the loader cannot tell it from an absent one.
        """
        default = type(self)(data=DataConfig(train=""), model=self.model)
        for place in places:
            if attrgetter(place)(self) != attrgetter(place)(default):
                yield f"{place}: {reason}; leave it out"


def encoder_of(config: Config) -> Any:
    """The settings of the encoder; None for a model without one."""
    return getattr(config.model, "encoder", None)


def length_limit(stack: Any) -> tuple[str, int | None]:
    """The setting that limits how many tokens a stack can read, and the limit; None: no limit."""
    positions = getattr(stack, "positions", None)
    if getattr(positions, "kind", "") == "learned":
        return "positions.max_positions", stack.positions.max_positions
    return "max_positions", getattr(stack, "max_positions", None)


def too_long(config: Config, part: str, stack: Any, reserved: int = 1) -> Iterator[str]:
    """An error if data.max_length exceeds the length limit of a stack; `reserved` tokens are needed for <eos>."""
    name, limit = length_limit(stack)
    yield from over_limit(config, f"model.{part}.{name}", limit, reserved)


def over_limit(config: Config, place: str, limit: int | None, reserved: int) -> Iterator[str]:
    """An error if data.max_length exceeds what the setting of a place allows."""
    if limit is not None and config.data.max_length + reserved > limit:
        most, eos = limit - reserved, ", <eos> included" if reserved else ""
        mend = Mend("data.max_length", most, f"length: up to {most} tokens, as {place} = {limit} allows")
        found = f"data.max_length: found {config.data.max_length}, but {place} = {limit} tokens{eos}"
        yield Problem(f"{found}; expected at most {most}", mend)


class Starter(NamedTuple):
    """The starter configuration of a task: one line of help, and the settings it makes."""

    about: str
    table: dict[str, Any]


class Automatic(NamedTuple):
    """What `dragoman train FILE` chooses for a task besides the training budget, and why."""

    table: dict[str, Any]
    reason: str


class Task:
    """One task. Its file subclasses this, `tasks/table.py` lists it, and no other code asks for its name."""

    config: ClassVar[type[Config]]
    starter: ClassVar[Starter]
    format: ClassVar[ExampleFormat]  # unless `example_format` chooses one by the settings
    automatic: ClassVar[Automatic | None] = None  # None: `auto` has rules of its own for the task
    automatic_series: ClassVar[Automatic | None] = None  # the same where every source is a series of numbers
    head_decoder: ClassVar[HeadDecoder | None] = None  # how a model's outputs become answers; None: by search
    is_language_model: ClassVar[bool] = False  # whether the data are one long text rather than rows
    default_metrics: ClassVar[tuple[str, ...]] = ()  # that `evaluate` reports by default; none: those of translation
    counts_edit_types: ClassVar[bool] = False  # whether `evaluate` also counts insertions, deletions and substitutions
    loss_unit: ClassVar[str] = "token (nats)"  # the unit of the loss

    @property
    def name(self) -> str:
        """The value of the setting `task`."""
        return str(self.config.task)

    @property
    def searches(self) -> bool:
        """Whether a search finds the output text, so that decoding options apply."""
        return self.head_decoder is None and not self.is_language_model

    def example_format(self, config: Config) -> ExampleFormat:
        """How files become examples, and examples stored rows."""
        return self.format

    def collator(self, config: Config, source: SourceReader) -> Collator:
        """How stored rows become batches; by default, rows of source and target tokens."""
        from dragoman.data import PAIR_COLLATOR

        return PAIR_COLLATOR

    def model(self, config: Config, source: SourceReader, target: Tokenizer) -> Any:
        """The untrained model for these vocabularies."""
        raise NotImplementedError

    def untrained(self, config: Config, source: int, target: int) -> Any:
        """The untrained network for vocabularies of these sizes, as the notes of a preset have them."""
        raise NotImplementedError

    def validator(self, config: Config, corpus: Corpus, device: torch.device) -> Validator:
        """The object that measures the model during training; by default for text that a search decodes."""
        from dragoman.training import Seq2SeqValidator

        return Seq2SeqValidator(
            corpus, config.search, config.train.decode, device, config.data.units, config.train.metric
        )

    def prepare(self, config: Config, note: Progress = lambda doing, count: None) -> Corpus:
        """The tokenised data of a run; cached from earlier runs where possible."""
        from dragoman.data import prepare_corpus

        corpus = prepare_corpus(config.data, config.tokenizer, note, self.example_format(config))
        return replace(corpus, collator=self.collator(config, corpus.source_tokenizer))

    def loader(self, config: Config, corpus: Corpus, model: nn.Module, processes: ProcessGroup) -> BatchLoader:
        from dragoman.training import example_loader

        return example_loader(corpus, config.train, getattr(config.model, "softmax", None))
