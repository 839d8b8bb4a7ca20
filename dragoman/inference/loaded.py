"""A run in memory: its configuration, tokenizers and model or ensemble, on a device, and the engine that searches."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, cast

from dragoman.base import ConfigError, RunError, may_have_gpu, terminal
from dragoman.classical import FittedModel
from dragoman.data import SourceReader
from dragoman.data.media import FeatureExtractor, extractor_of
from dragoman.data.tokenizers import PairCodec, Tokenizer
from dragoman.decoding import DEFAULT_AVERAGE, Average, DecodingOptions
from dragoman.decoding.constraints import ConstraintCompiler
from dragoman.inference.long_inputs import LengthLimits
from dragoman.inference.prediction import Picture
from dragoman.inference.unseen import UnseenText
from dragoman.models import EncoderDecoderConfig, Likelihood, ModelTraits
from dragoman.runs import Run

if TYPE_CHECKING:
    import torch

    from dragoman.data import Collator
    from dragoman.decoding import Ensemble
    from dragoman.inference.engine.choice import EngineChoice


_opening = threading.RLock()
# What `dir` shows; INSTANCE: attributes that the constructors set.
INSTANCE = frozenset({"config", "run", "source_tokenizer", "target_tokenizer"})
PUBLIC = INSTANCE | {
    "align", "attention", "complete", "curves", "defaults", "device", "evaluate", "fits", "force_align", "inspect",
    "is_calibrated", "labels", "loss", "parameters", "predict", "rate", "score", "size", "stream", "test_scores",
    "trace", "unseen_in",
}  # fmt: skip


def unopened(cls: type[LoadedRun], reopen: tuple[Any, ...]) -> LoadedRun:
    """An unpickled run, whose folder has not been read yet."""
    run = cls.__new__(cls)
    run.__dict__["_reopen"] = reopen
    return run


class LoadedRun:
    """A trained run that is ready to work: the base of `Predictor`, `Labeler` and `Completer`.

    Other code asks what a run can do here, not what class it has.
    """

    model: Any
    searches = False  # whether a search finds its outputs, so that decoding options apply
    continues = False  # whether it continues prompts
    labels: tuple[str, ...] = ()  # that it chooses from
    test_scores: Mapping[str, float] = MappingProxyType({})  # of the test data that `dragoman.train` was given

    def __init__(self, run: Run, device: str = "auto") -> None:
        self.run, self.config = run, run.config
        self._device = device
        if device not in ("auto", "cpu"):
            _ = self.device  # an unknown one is an error before any work
        self.source_tokenizer, self.target_tokenizer = run.tokenizers()
        reader = self.source_tokenizer
        self.reads_files = reader.reads_files  # whether its inputs are paths of recordings or pictures
        self.tags = reader.tags  # that a source may begin with, such as "de"; empty: a run trained without tags
        self.reads_match = self.config.data.memory  # how much alike a segment must be whose translation it reads along
        self.context = 0 if self.reads_match else reader.context  # sentences before a source that it reads along
        # two of a run that labels pairs, a tab between
        self.texts_per_input = 1 if reader.separator is None or reader.context else 2
        self.members: tuple[Run, ...] = (run,)  # of an ensemble several
        self.unseen = UnseenText(run, self.source_tokenizer)

    def __dir__(self) -> list[str]:
        """What a user calls and reads; all else may change."""
        return sorted(name for name in PUBLIC if name in INSTANCE or name in self.__dict__ or hasattr(type(self), name))

    def opening(self) -> tuple[object, ...]:
        """What its constructor takes after run and device, to open it again in another process."""
        return ()

    def __reduce__(self) -> tuple[object, ...]:
        """Folder, device and options cross processes, not the weights; the copy opens its model on first use."""
        if (reopen := self.__dict__.get("_reopen")) is None:
            reopen = (str(self.run.folder.absolute()), self._device, *self.opening())
        state = {"test_scores": dict(self.test_scores)} if "test_scores" in self.__dict__ else None
        return unopened, (type(self), reopen), state

    def __copy__(self) -> Self:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    if not TYPE_CHECKING:  # a type checker must go on to know all attributes

        def __getattr__(self, name: str) -> Any:
            """Open a run that was unpickled, when somebody first asks for what it lacks."""
            if name.startswith("__") or not self.__dict__:
                raise AttributeError(name)
            with _opening:  # of several threads the first one opens it
                if (reopen := self.__dict__.get("_reopen")) is not None:
                    folder, *others = reopen
                    opened = type(self)(Run(folder), *others)
                    opened.__dict__.update({key: own for key, own in self.__dict__.items() if key != "_reopen"})
                    self.__dict__ = opened.__dict__  # at once, and shared with what refers to the opened one
            return object.__getattribute__(self, name)  # another thread has opened it, or there is none of the name

    @cached_property
    def device(self) -> torch.device:
        """Where its model computes. A fitted model needs none, and without it no torch is imported."""
        from dragoman.training import resolve_device

        return resolve_device(self._device)

    @property
    def device_name(self) -> str:
        """The name of the device; torch is not imported where no GPU can be."""
        if self._device == "cpu" or (self._device == "auto" and not may_have_gpu()):
            return "cpu"
        return str(self.device)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run.folder}: {self.run.task.name}, {self.size} on {self.device}>"

    @property
    def size(self) -> str:
        """How large the model is: its parameters, or the numbers that a fitted one stores."""
        if isinstance(self.scorer, FittedModel):
            return self.scorer.size
        members = f" in {len(self.members)} models" if len(self.members) > 1 else ""
        return f"{self.parameters:,} parameters{members}"

    @property
    def parameters(self) -> int:
        """The number of parameters, of all members together."""
        return sum(parameter.numel() for parameter in self.scorer.parameters())

    @property
    def extractor(self) -> FeatureExtractor:
        """What reads the files of a run that reads files."""
        return extractor_of(self.source_tokenizer)

    @property
    def scorer(self) -> Any:
        """The model that scores given outputs: all members of an ensemble together, as they predict."""
        return self.model

    @property
    def likelihood(self) -> Likelihood:
        """What probability of a given text it has: of every token, of the whole, or none."""
        return self.scorer.likelihood  # type: ignore[no-any-return]

    @property
    def is_calibrated(self) -> bool:
        """Whether its outputs have calibrated confidences."""
        return False

    @cached_property
    def length_limits(self) -> LengthLimits:
        """The longest inputs that all members were trained on or can read."""
        limits = [LengthLimits.of(member) for member in self.members]
        usual = [own.usual for own in limits if own.usual is not None]
        return min(limits, key=lambda own: own[:3])._replace(usual=min(usual) if len(usual) == len(limits) else None)

    def fits(self, text: str) -> bool:
        """Whether the model reads a text well as one source."""
        limits = self.length_limits
        room = limits.tokens - 2  # a tag takes one, and a piece at the start may be split differently
        return limits._replace(tokens=room).excess(text, self.source_tokenizer, usual=True) is None

    def unseen_in(self, text: str) -> list[str]:
        """The characters or words of an input that training did not have."""
        return self.unseen(text)

    def single_model(self, purpose: str) -> Any:
        """The model of a run that is no ensemble; RunError for an ensemble. `purpose` says what needs one model."""
        self.run.check_single(purpose)
        return self.model

    # --- what a person wants to look at

    def inspect(
        self, text: str, target: str | None = None, *, tag: str | None = None, beam: int | None = None
    ) -> Picture:
        """The page of `dragoman inspect`: every view of what the model does with a text.

        `target` is the output to explain, by default the model's own.
        """
        return cast(Picture, terminal.pictures().inspect(self, text, target, tag=tag, beam=beam))

    def attention(self, text: str, output: str | None = None, *, tag: str | None = None) -> Picture:
        """The cross-attention of each output token over the input, by default for the model's own output."""
        return cast(Picture, terminal.pictures().attention(self, text, output, tag=tag))

    def curves(self) -> Picture:
        """Training and validation loss over the steps of the run."""
        return cast(Picture, terminal.pictures().curves(self))

    def _repr_html_(self) -> str:
        return str(terminal.pictures().run_html(self))


class Seq2SeqRun(LoadedRun):
    """A run whose outputs are texts found by a search; its `model` averages all members of an ensemble."""

    searches = True

    def __init__(
        self, run: Run, device: str = "auto", precision: str = "float32", *, late: bool = False, alone: bool = False
    ) -> None:
        """Precision "bfloat16" halves the weights on a GPU; any other leaves them in float32.

        With `late` the model is opened when somebody first asks for it; `alone` is the run's own model of an ensemble.
        """
        if run.task.is_language_model:
            raise RunError(f"{run.folder}: this run is a language model; use `dragoman complete`")
        if run.task.head_decoder is not None:
            raise RunError(
                f'{run.folder}: found task = "{run.task.name}", which needs no search; expected task = "translate", '
                '"transcribe" or "caption"'
            )
        super().__init__(run, device)
        self.half = precision == "bfloat16"
        self.members = (run,) if alone else (run, *run.other_members)
        if not late:
            _ = self.model
        tokenizers = (self.source_tokenizer, self.target_tokenizer)
        averaged = self.members if are_averaged(self.members) else (run,)
        codecs = [member.task.example_format(member.config).codec(*tokenizers) for member in averaged]
        self.codec = shared_codec(codecs, tokenizers)
        self.unseen = UnseenText(run, self.source_tokenizer, copies=self.codec.copies)
        # target tokens for one source token, in training
        self.length_ratio = max(float(member.data["length_ratio"]) for member in self.members)

    @cached_property
    def models(self) -> tuple[Any, ...]:
        return tuple(self._open(member) for member in self.members)

    @cached_property
    def model(self) -> Any:
        if not are_averaged(self.members):
            self.run.check_single("its members have no common vocabulary")
        if len(self.models) == 1:
            return self.models[0]
        return average_models(self.models, weights=shares(self.run, DecodingOptions()))

    @cached_property
    def collator(self) -> Collator:
        """How rows of tokens become batches."""
        return self.run.task.collator(self.config, self.source_tokenizer)

    @cached_property
    def constraint_compiler(self) -> ConstraintCompiler:
        """Compiles constraints into automata over tokens; it reads the vocabulary when it is first needed."""
        return ConstraintCompiler(self.target_tokenizer)

    def companion(self, run: str | Path | Seq2SeqRun, purpose: str) -> Seq2SeqRun:
        """Another run on the same device, which may be open already, with the same vocabularies."""
        other = load_seq2seq(run, str(self.device))
        check_same_vocabularies(self.run, other.run, purpose)
        return other

    def run_at(self, folder: str | Path) -> Run:
        """Any other run folder, unopened: for decoding methods, which cannot import it."""
        return Run(folder)

    def _open(self, member: Run) -> Any:
        if member.is_fitted:
            return member.fitted_model()
        from dragoman.models.kernels import lay_out_for_decoding

        model: Any = member.own_model(self.device)
        if self.half:
            model.bfloat16()
        lay_out_for_decoding(model)
        return model


def load_seq2seq(run: str | Path | Seq2SeqRun, device: str = "auto", precision: str = "float32") -> Seq2SeqRun:
    return run if isinstance(run, Seq2SeqRun) else Seq2SeqRun(Run(run), device, precision)


def are_averaged(members: Sequence[Run]) -> bool:
    """Whether models can be averaged token by token: they write so, and their token ids mean the same."""
    if len(members) == 1:
        return True
    if not all(isinstance(run.config.model, EncoderDecoderConfig) for run in members):
        return False
    prints = {tuple(tokenizer.fingerprint() for tokenizer in run.tokenizers()) for run in members}
    return len(prints) == 1


def shares(run: Run, options: DecodingOptions) -> tuple[float, ...]:
    """The weights of the members, which sum to 1: those of the call, else those of the run folder; none: equal ones."""
    weights = options.weights or (() if options.ensemble else run.member_weights)
    return tuple(weight / math.fsum(weights) for weight in weights)


def average_models(
    models: Sequence[Any], average: Average = DEFAULT_AVERAGE, weights: Sequence[float] = ()
) -> Ensemble:
    """The ensemble of several models, which must have gradients."""
    if any(isinstance(model, FittedModel) for model in models):
        raise ConfigError("an ensemble averages neural models; found one without a neural network")
    from dragoman.decoding import Ensemble

    return Ensemble(models, average, weights)


def shared_codec(codecs: Sequence[PairCodec], tokenizers: tuple[SourceReader, Tokenizer]) -> PairCodec:
    """The codec of an ensemble: words are copied if every member can, since others cannot read their ids."""
    return codecs[0] if all(codec.copies for codec in codecs) or len(codecs) == 1 else PairCodec(*tokenizers)


def check_same_vocabularies(first: Run, other: Run, purpose: str) -> None:
    """Raise an error if the token ids of the two run folders mean different things."""
    for side, mine, theirs in zip(("source", "target"), first.tokenizers(), other.tokenizers(), strict=True):
        if mine.fingerprint() != theirs.fingerprint():
            raise RunError(
                f"{other.folder}: found a {side} vocabulary of {len(theirs):,} {theirs.kind}, expected the very "
                f"same as in {first.folder} ({len(mine):,} {mine.kind}): {purpose} needs runs trained with the "
                "same data.train and tokenizer settings"
            )


@dataclass(frozen=True)
class Backend:
    """A model to search with, how long its outputs may become, and the engine that may search in place of torch."""

    open_model: Callable[[], Any]
    length_ratio: float
    engines: EngineChoice | None  # None: a fitted model, which searches on its own
    codec: PairCodec
    own: bool = True  # the model of the run folder, which a calibration there is for

    @property
    def model(self) -> Any:
        """The model; an engine whose folder is written searches without it."""
        return self.open_model()

    @property
    def traits(self) -> ModelTraits:
        """What the model declares; where an engine can search, this is known from the settings of the run."""
        known = None if self.engines is None else self.engines.traits
        return self.model if known is None else known


def open_backend(
    first: Seq2SeqRun, options: DecodingOptions, committee: Callable[[Sequence[Run]], ModelTraits]
) -> Backend:
    """The backend of a run; with `options.ensemble` the models of all runs are averaged token by token.

    `committee` opens those that cannot be averaged so.
    """
    tokenizers = (first.source_tokenizer, first.target_tokenizer)
    opened = [run if isinstance(run, Seq2SeqRun) else Seq2SeqRun(Run(run), late=True) for run in options.ensemble]
    members = [member for run in (first, *opened) for member in run.members]
    several = len(members) > 1
    for name, given, usual in (("average", options.average, DEFAULT_AVERAGE), ("weights", options.weights, ())):
        if given != usual and not several:
            shown = given if isinstance(given, str) else ", ".join(map(str, given))
            raise ConfigError(f"ensemble.{name}: found {shown} for a single run, expected ensemble.runs with it")
    if options.weights and len(options.weights) != len(members):
        raise ConfigError(
            f"ensemble.weights: found {len(options.weights)}, expected one for each of {len(members)} members"
        )
    if several and not are_averaged(members):
        voting = committee(members)
        return Backend(lambda: voting, first.length_ratio, None, first.codec, own=False)
    if first.half != (options.precision == "bfloat16"):
        first = Seq2SeqRun(first.run, str(first.device), options.precision)
    runs = [first, *(load_seq2seq(run, str(first.device), options.precision) for run in options.ensemble)]
    own = len(runs) == 1 and (not several or (options.average == DEFAULT_AVERAGE and not options.weights))
    models = [] if own else [model for run in runs for model in run.models]
    averaged = None if own else average_models(models, options.average, shares(first.run, options))

    def open_model() -> Any:
        return first.model if averaged is None else averaged

    codec = first.codec if own else shared_codec([run.codec for run in runs], tokenizers)
    ratio = max(run.length_ratio for run in runs)
    if first.run.is_fitted and options.engine in ("auto", "torch") and options.precision == "float32":
        _ = first.model
        return Backend(open_model, ratio, None, codec, own)
    from dragoman.inference.engine.choice import Call, EngineChoice

    engines = EngineChoice(first.run, tokenizers, options.engine, options.precision, first.device_name, several)
    call = Call(options.search_config(first.config.search), options)
    if several or options.method is not None or not engines.open_written(call):
        open_model()  # faults in it are errors before any work
    return Backend(open_model, ratio, engines, codec, own)
