"""`DecodingOptions`: everything a caller decides about decoding, from the command line or Python down to the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from dragoman.config import settings
from dragoman.data.translation_memory import TranslationMemory
from dragoman.decoding.config import DEFAULT_AVERAGE, Average, SearchConfig
from dragoman.decoding.constraints.source import Terminology
from dragoman.decoding.method import Method
from dragoman.errors import ConfigError, hint

EngineName = Literal["auto", "torch", "ctranslate2"]
Precision = Literal["float32", "bfloat16", "int8"]
# A run folder, or a run that is open already (inference.loaded.LoadedRun, inference.completer.Completer).
RunLike = Any
# One or several texts for all inputs, or a list with the texts of each input. Where alternatives are possible, a tuple
# of phrases means: one of them.
Phrases = str | Sequence[str | Sequence[str | Sequence[str]] | None] | None


@dataclass(frozen=True)
class RerankModel:
    """A run whose scores rerank the n-best list: score + weight · mean log-probability per token."""

    run: RunLike  # trained from target to source, or a language model of the target
    weight: float = 1.0
    tag: str | None = None  # for a reverse run that was trained with tags


@dataclass(frozen=True)
class DecodingOptions:
    """How outputs are searched for and what they must satisfy.

    A search setting of None is the run's own (`search.…` in its configuration). A constraint is one value for all
    inputs, or a list with one entry for each input.
    """

    # Beam search: see SearchConfig.
    beam: int | None = None
    length_penalty: float | None = None
    normalisation: str | None = None
    coverage_penalty: float | None = None
    stop: str | None = None
    num_complete: int | None = None
    min_length: int | None = None
    max_length: int | None = None
    no_repeat_ngram: int | None = None
    beam_groups: int | None = None
    diversity_penalty: float | None = None

    n_best: int = 1  # outputs for each input
    method: Method | None = None  # another method than beam search, such as those of `methods.METHODS`
    rerank: RerankModel | Sequence[RerankModel] = ()
    ensemble: Sequence[RunLike] = ()  # further runs with the same vocabularies
    average: Average = DEFAULT_AVERAGE  # how an ensemble averages: mean of probabilities, or of their logarithms

    # Constraints on outputs.
    prefix: str | Sequence[str | None] | None = None  # the output begins with this text
    forbid: Phrases = None  # it holds none of these texts
    require: Phrases = None  # it holds all these phrases; a tuple of phrases: one of them
    allow: Phrases = None  # it is one of these texts
    pattern: str | Sequence[str | None] | None = None  # it matches this regular expression as a whole
    constrain: Mapping[str, str] | Sequence[Mapping[str, str] | None] | None = None  # registered constraints by name
    terminology: str | Path | Terminology | None = None  # target terms required where the source has a term
    placeholders: bool = False  # tags, variables and addresses of the source are copied

    min_confidence: float | None = None  # an output below it is left out and marked; needs a calibrated run
    memory: str | Path | TranslationMemory | None = None  # translations that are taken as they are
    min_match: float = 0.7  # fuzzy matches of the memory are shown from this score on
    tag: str | None = None  # of the target language, for a run trained with tags
    scores: bool = True  # False: only texts are needed, so neither scores nor confidences are computed
    batch_size: int = 64
    engine: EngineName = "auto"  # "auto": CTranslate2 on a CPU where it gives the same text as torch
    precision: Precision = "float32"  # "bfloat16" on a GPU, "int8" with ctranslate2; texts may differ a little

    def __post_init__(self) -> None:
        check_at_least(1, batch_size=self.batch_size, n_best=self.n_best)
        if not 0.0 < self.min_match <= 1.0:
            raise ConfigError(f"min_match: found {self.min_match}, expected a score above 0 and up to 1")
        if self.min_confidence is not None and not 0.0 <= self.min_confidence <= 1.0:
            raise ConfigError(f"min_confidence: found {self.min_confidence}, expected a probability from 0 to 1")
        for name in ("rerank", "ensemble"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))

    def search_config(self, run: SearchConfig) -> SearchConfig:
        """The search settings of this call: those of a run, changed where an option is not None."""
        names = (field.name for field in fields(SearchConfig))
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if not given:
            return run
        config = settings.build(SearchConfig, settings.as_table(run) | given)
        if self.diversity_penalty is not None and config.beam_groups == 1:
            raise ConfigError(
                f"diversity_penalty: found {config.diversity_penalty}, expected beam_groups above 1 with it"
            )
        return config

    def over(self, defaults: DecodingOptions) -> DecodingOptions:
        """These options, with the values of `defaults` where an option has its own default."""
        changed = {name: getattr(self, name) for name in changed_fields(self)}
        return replace(defaults, **changed)


def check_at_least(minimum: int, **values: int) -> None:
    for name, value in values.items():
        if value < minimum:
            raise ConfigError(f"{name}: found {value}, expected at least {minimum}")


def changed_fields(options: Any) -> list[str]:
    """The fields of a dataclass instance that differ from their defaults."""
    return [field.name for field in fields(options) if getattr(options, field.name) != field.default]


def replace_from_keywords(keywords: dict[str, Any], *bases: Any) -> tuple[Any, ...]:
    """Dataclass instances with keywords set, each in the first instance that has a field of its name."""
    names = [{field.name for field in fields(base)} for base in bases]
    if unknown := next((name for name in keywords if not any(name in known for known in names)), None):
        raise TypeError(f"found the option {unknown!r}. {hint(unknown, sorted(set().union(*names)))}")
    return tuple(
        replace(base, **{name: value for name, value in keywords.items() if name in known}) if keywords else base
        for base, known in zip(bases, names, strict=True)
    )
