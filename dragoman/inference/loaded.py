"""A run in memory: its configuration, tokenizers and model or ensemble, on a device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.classical.model import FittedModel
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.pair_codec import PairCodec
from dragoman.decoding.ensemble import DEFAULT_AVERAGE, Average, Ensemble
from dragoman.errors import ConfigError, RunError
from dragoman.inference.unseen import UnseenText
from dragoman.kernels.weight_layout import lay_out_for_decoding
from dragoman.runs import Run
from dragoman.training.runtime import resolve_device


class LoadedRun:
    """A run whose outputs are texts found by a search.

    `model` is the whole run: of an ensemble all members, averaged token by token. What reads the inside of one model
    takes `single_model`, which refuses an ensemble.
    """

    def __init__(self, run: Run, device: str = "auto", precision: str = "float32") -> None:
        """Precision "bfloat16" halves the weights on a GPU; any other leaves them in float32."""
        if run.task.is_language_model:
            raise RunError(f"{run.folder}: this run is a language model; use `dragoman complete`")
        if run.task.head_decoder is not None:
            raise RunError(
                f'{run.folder}: found task = "{run.task.name}", which needs no search; expected task = "translate", '
                '"transcribe" or "caption"'
            )
        self.run, self.config = run, run.config
        self.device = resolve_device(device)
        self.source_tokenizer, self.target_tokenizer = run.tokenizers()
        self.collator = run.task.collator(run.config, self.source_tokenizer)
        self.half = precision == "bfloat16"
        self.members = (run, *run.other_members)
        for other in self.members[1:]:
            check_same_vocabularies(run, other, "an ensemble")
        self.models = tuple(self._open(member) for member in self.members)
        self.model: Any = self.models[0] if len(self.models) == 1 else average_models(self.models)
        tokenizers = (self.source_tokenizer, self.target_tokenizer)
        codecs = [member.task.example_format(member.config).codec(*tokenizers) for member in self.members]
        self.codec = shared_codec(codecs, tokenizers)
        self.unseen = UnseenText(run, self.source_tokenizer, copies=self.codec.copies)
        # target tokens for one source token, in training
        self.length_ratio = max(float(member.data["length_ratio"]) for member in self.members)

    def _open(self, member: Run) -> Any:
        model = member.own_model(self.device)
        if self.half:
            model.bfloat16()
        lay_out_for_decoding(model)
        return model

    def single_model(self, purpose: str) -> Any:
        """The model of a run that is no ensemble; RunError for an ensemble. `purpose` says what needs one model."""
        self.run.check_single(purpose)
        return self.model

    def __repr__(self) -> str:
        return describe(self, self.run, self.model, self.device)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags a source may begin with, such as "de"; empty for a run trained without tags."""
        return self.source_tokenizer.tags


def describe(one: object, run: Run, model: Any, device: Any) -> str:
    """What a person sees of an open run: its folder, task, size and device."""
    return f"<{type(one).__name__} {run.folder}: {run.task.name}, {model_size(model)} on {device}>"


def model_size(model: Any) -> str:
    """How large a model is: its parameters, or the numbers that a fitted one stores."""
    if isinstance(model, FittedModel):
        return model.size
    members = f" in {len(model.models)} models" if isinstance(model, Ensemble) else ""
    return f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters{members}"


def opened(run: str | Path | LoadedRun, device: str = "auto", precision: str = "float32") -> LoadedRun:
    """A run that may be open already."""
    return run if isinstance(run, LoadedRun) else LoadedRun(Run(run), device, precision)


def average_models(models: Sequence[Any], average: Average = DEFAULT_AVERAGE) -> Ensemble:
    """The ensemble of several models, which must have gradients."""
    if any(isinstance(model, FittedModel) for model in models):
        raise ConfigError("an ensemble averages neural models; found one without a neural network")
    return Ensemble(models, average)


def shared_codec(codecs: Sequence[PairCodec], tokenizers: tuple[Tokenizer, Tokenizer]) -> PairCodec:
    """The codec of an ensemble: words are copied if every member can, since others cannot read their ids."""
    return codecs[0] if all(codec.copies for codec in codecs) or len(codecs) == 1 else PairCodec(*tokenizers)


def check_vocabularies(first: LoadedRun, other: LoadedRun, purpose: str) -> None:
    """Raise an error if the token ids of the two runs mean different things."""
    check_same_vocabularies(first.run, other.run, purpose)


def check_same_vocabularies(first: Run, other: Run, purpose: str) -> None:
    """Raise an error if the token ids of the two run folders mean different things."""
    for side, mine, theirs in zip(("source", "target"), first.tokenizers(), other.tokenizers(), strict=True):
        if mine.fingerprint() != theirs.fingerprint():
            raise RunError(
                f"{other.folder}: found a {side} vocabulary of {len(theirs):,} {theirs.kind}, expected the very "
                f"same as in {first.folder} ({len(mine):,} {mine.kind}): {purpose} needs runs trained with the "
                "same data.train and tokenizer settings"
            )
