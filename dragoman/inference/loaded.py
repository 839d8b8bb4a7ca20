"""A run in memory: its configuration, tokenizers and model or ensemble, on a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from dragoman.classical.model import FittedModel
from dragoman.data.media.feature_extractor import FeatureExtractor, extractor_of
from dragoman.data.readers.memory import sources_of
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.pair_codec import PairCodec
from dragoman.decoding.constraints.compiler import ConstraintCompiler
from dragoman.decoding.ensemble import DEFAULT_AVERAGE, Average, Ensemble
from dragoman.errors import ConfigError, RunError
from dragoman.inference.display import OpenRunViews
from dragoman.inference.long_inputs import MAX_TOKENS_PER_CHARACTER, LengthLimits
from dragoman.inference.unseen import UnseenText
from dragoman.kernels.weight_layout import lay_out_for_decoding
from dragoman.models.contracts import Likelihood
from dragoman.runs import Run
from dragoman.training.runtime import resolve_device


class LoadedRun(OpenRunViews):
    """A trained run that is ready to work: the base of `Predictor`, `Labeler` and `Completer`.

    Other code asks what a run can do here, not what class it has.
    """

    model: Any
    searches = False  # whether a search finds its outputs, so that decoding options apply
    continues = False  # whether it continues prompts
    labels: tuple[str, ...] = ()  # that it chooses from

    def __init__(self, run: Run, device: str = "auto") -> None:
        self.run, self.config = run, run.config
        self.device = resolve_device(device)
        self.source_tokenizer, self.target_tokenizer = run.tokenizers()
        self.members: tuple[Run, ...] = (run,)  # of an ensemble several
        self.unseen = UnseenText(run, self.source_tokenizer)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run.folder}: {self.run.task.name}, {self.size} on {self.device}>"

    @property
    def size(self) -> str:
        """How large the model is: its parameters, or the numbers that a fitted one stores."""
        if isinstance(self.model, FittedModel):
            return self.model.size
        members = f" in {len(self.members)} models" if len(self.members) > 1 else ""
        return f"{self.parameters:,} parameters{members}"

    @property
    def parameters(self) -> int:
        """The number of parameters, of all members together."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def reads_files(self) -> bool:
        """Whether its inputs are paths of recordings or pictures."""
        return self.source_tokenizer.reads_files

    @property
    def extractor(self) -> FeatureExtractor:
        """What reads the files of a run that reads files."""
        return extractor_of(self.source_tokenizer)

    @property
    def texts_per_input(self) -> int:
        """How many texts an input has: two, with a tab between them, for a run that labels pairs of texts."""
        return 1 if self.source_tokenizer.separator is None else 2

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags a source may begin with, such as "de"; empty for a run trained without tags."""
        return self.source_tokenizer.tags

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
        return min(LengthLimits.of(member.config) for member in self.members)

    def fits(self, text: str) -> bool:
        """Whether the model can read a text as one source."""
        limits = self.length_limits
        if len(text) > limits.characters:
            return False
        room = limits.tokens - 2  # a tag takes one, and a piece at the start may be split differently
        return len(text) * MAX_TOKENS_PER_CHARACTER <= room or len(self.source_tokenizer.encode(text)) <= room

    def texts_of(self, data: Path | Iterable[object]) -> list[str]:
        """The sources that a Python user gives: texts, the sources of a file (a Path), of rows or of a DataFrame."""
        if isinstance(data, list | tuple) and not any(isinstance(item, Mapping) for item in data):
            return list(data)
        return list(sources_of(data, self.config.data.columns, self.texts_per_input))

    def unseen_in(self, text: str) -> list[str]:
        """The characters or words of an input that training did not have."""
        return self.unseen(text)

    def single_model(self, purpose: str) -> Any:
        """The model of a run that is no ensemble; RunError for an ensemble. `purpose` says what needs one model."""
        self.run.check_single(purpose)
        return self.model


class Seq2SeqRun(LoadedRun):
    """A run whose outputs are texts found by a search; its `model` averages all members of an ensemble."""

    searches = True

    def __init__(self, run: Run, device: str = "auto", precision: str = "float32") -> None:
        """Precision "bfloat16" halves the weights on a GPU; any other leaves them in float32."""
        if run.task.is_language_model:
            raise RunError(f"{run.folder}: this run is a language model; use `dragoman complete`")
        if run.task.head_decoder is not None:
            raise RunError(
                f'{run.folder}: found task = "{run.task.name}", which needs no search; expected task = "translate", '
                '"transcribe" or "caption"'
            )
        super().__init__(run, device)
        self.collator = run.task.collator(run.config, self.source_tokenizer)
        self.half = precision == "bfloat16"
        self.members = (run, *run.other_members)
        for other in self.members[1:]:
            check_same_vocabularies(run, other, "an ensemble")
        self.models = tuple(self._open(member) for member in self.members)
        self.model = self.models[0] if len(self.models) == 1 else average_models(self.models)
        tokenizers = (self.source_tokenizer, self.target_tokenizer)
        codecs = [member.task.example_format(member.config).codec(*tokenizers) for member in self.members]
        self.codec = shared_codec(codecs, tokenizers)
        self.unseen = UnseenText(run, self.source_tokenizer, copies=self.codec.copies)
        # target tokens for one source token, in training
        self.length_ratio = max(float(member.data["length_ratio"]) for member in self.members)

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
        model = member.own_model(self.device)
        if self.half:
            model.bfloat16()
        lay_out_for_decoding(model)
        return model


def load_seq2seq(run: str | Path | Seq2SeqRun, device: str = "auto", precision: str = "float32") -> Seq2SeqRun:
    """A run that may be open already."""
    return run if isinstance(run, Seq2SeqRun) else Seq2SeqRun(Run(run), device, precision)


def average_models(models: Sequence[Any], average: Average = DEFAULT_AVERAGE) -> Ensemble:
    """The ensemble of several models, which must have gradients."""
    if any(isinstance(model, FittedModel) for model in models):
        raise ConfigError("an ensemble averages neural models; found one without a neural network")
    return Ensemble(models, average)


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
