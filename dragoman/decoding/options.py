"""`DecodingOptions`: everything a caller decides about decoding, from the command line, a server or Python.

Each option is told once, with its help, its limits and how words such as `constraints.require=ship` write it: the
settings of commands and the fields of requests follow from it. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from dragoman.base import ConfigError, DataError, hint
from dragoman.base import config as settings
from dragoman.base.config import Range, accepted, fields_of, setting, type_hints
from dragoman.decoding.config import DEFAULT_AVERAGE, MAX_BEAM, Average, SearchConfig
from dragoman.decoding.method import METHODS

if TYPE_CHECKING:
    from dragoman.data import TranslationMemory
    from dragoman.decoding.constraints.source import Terminology
    from dragoman.decoding.method import Method
else:
    Method = Terminology = TranslationMemory = Any  # words cannot write them, and their imports take time


T = TypeVar("T")
Texts = tuple[str, ...]
OWN = "own"  # the choice of a setting with named choices; the others have None, which is no name


class Words(NamedTuple):
    """How words write an option that Python takes as another value, or at another place."""

    place: str
    annotation: Any  # what the strict loader reads
    default: Any = None
    read: Callable[[Any], Any] = lambda value: value  # the option of the value
    note: str = ""  # what help adds


def option(default: T, help: str, words: Words | None = None, remote: str | None = None, flag: str = "") -> T:
    """A field of `DecodingOptions`; without `words` its name is the place and its type is what words write.

    Clients of a server may give a field with `remote`, which names the limit of the server that caps it, or is empty.
    """
    made: Any = field(default=default, metadata={"help": help, "words": words, "remote": remote, "flag": flag})
    return made  # type: ignore[no-any-return]


def searched(name: str, remote: str = "", flag: str = "") -> Any:
    """A setting of the search; None is the run's own."""
    annotation, help = type_hints(SearchConfig)[name], fields_of(SearchConfig)[name].metadata["help"]
    words = Words(f"search.{name}", annotation | None)
    if get_origin(annotation) is Literal:
        choices: Any = Literal[OWN, *get_args(annotation)]
        words = Words(words.place, choices, OWN, lambda value: None if value == OWN else value, f"; {OWN}: the run's")
    return option(None, help, words, remote, flag)


def constraint(
    name: str, help: str, read: Callable[[Any], Any], annotation: Any = str | None, note: str = "", remote: Any = ""
) -> Any:
    words = Words(f"constraints.{name}", annotation, () if annotation == Texts else None, read, note)
    return option(None, help, words, remote)


def read_text(text: str | None) -> str | None:
    if text == "":
        raise ConfigError("found nothing, expected text")
    return text


def read_phrases(phrases: Texts) -> list[str] | None:
    if twice := next((phrase for phrase in phrases if phrases.count(phrase) > 1), None):
        raise ConfigError(f"found '{twice}' twice, expected each phrase once")
    return list(phrases) or None


def read_named(entries: Texts) -> dict[str, str] | None:
    if wrong := next((entry for entry in entries if not entry.partition("=")[2]), None):
        raise ConfigError(f"found '{wrong}', expected NAME=TEXT")
    return {name: text for name, _, text in (entry.partition("=") for entry in entries)} or None


def read_allowed(file: str | None) -> list[str] | None:
    from dragoman.data.readers import read_lines

    texts = None if file is None else list(read_lines(file))
    if texts == []:
        raise DataError(f"{file}: found no line, expected the allowed outputs, one per line")
    return texts


def read_terminology(file: str | None) -> Terminology | None:
    from dragoman.decoding.constraints.source import Terminology

    return None if file is None else Terminology.read(file)


@dataclass(frozen=True)
class RerankSettings:
    """Runs that rerank the outputs of the beam."""

    runs: tuple[str, ...] = setting((), help="runs trained from target to source, or language models of the target")
    weights: tuple[float, ...] = setting(
        (), help="score = own + weight × that of the run, both means per token; one for each run, else 1"
    )
    tag: str | None = setting(None, help="tag for a run that was trained with several tags")

    def problems(self) -> Iterator[str]:
        if self.weights and len(self.weights) != len(self.runs):
            yield f"weights: found {len(self.weights)} for {len(self.runs)} rerank.runs, expected one for each or none"
        if self.tag is not None and not self.runs:
            yield "tag: needs rerank.runs"


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

    @classmethod
    def all_of(cls, settings: RerankSettings) -> tuple[RerankModel, ...]:
        weights = settings.weights or [1.0] * len(settings.runs)
        return tuple(cls(run, weight, settings.tag) for run, weight in zip(settings.runs, weights, strict=True))


@dataclass(frozen=True)
class DecodingOptions:
    """How outputs are searched for and what they must satisfy.

    A search setting of None is the run's own (`search.…` in its configuration). A constraint is one value for all
    inputs, or a list with one entry for each input.
    """

    beam: int | None = searched("beam", remote="beam", flag="--beam")
    length_penalty: float | None = searched("length_penalty")
    normalisation: str | None = searched("normalisation")
    coverage_penalty: float | None = searched("coverage_penalty")
    stop: str | None = searched("stop")
    num_complete: int | None = searched("num_complete", remote="beam")
    min_length: int | None = searched("min_length", remote="tokens")
    no_repeat_ngram: int | None = searched("no_repeat_ngram", remote="tokens")
    beam_groups: int | None = searched("beam_groups")
    diversity_penalty: float | None = searched("diversity_penalty")
    max_length: int | None = searched("max_length", remote="tokens")
    method: Method | None = option(
        None, "another method than beam search", Words("method", Annotated[Any, METHODS] | None), remote=""
    )

    prefix: str | Sequence[str | None] | None = constraint("prefix", "the output begins with this text", read_text)
    forbid: Phrases = constraint(
        "forbid", "the output contains none of these texts, not even inside words", read_phrases, tuple[str, ...]
    )
    require: Phrases = constraint("require", "the output contains all of these phrases", read_phrases, tuple[str, ...])
    allow: Phrases = constraint(
        "allow", "the output is one of these texts", read_allowed, note=": a file with one per line"
    )
    pattern: str | Sequence[str | None] | None = constraint(
        "pattern", "the whole output matches this regular expression", read_text
    )
    constrain: Mapping[str, str] | Sequence[Mapping[str, str] | None] | None = constraint(
        "constrain", "the output satisfies these registered constraints", read_named, tuple[str, ...], ": NAME=TEXT",
        remote=None,
    )  # fmt: skip
    terminology: str | Path | Terminology | None = constraint(
        "terminology", "where the source has a term, the output has its translation", read_terminology,
        note=": a file of pairs, tab-separated",
    )  # fmt: skip
    placeholders: bool = option(
        False, "copy tags, {variables} and addresses of the source", Words("constraints.placeholders", bool, False), ""
    )

    ensemble: Sequence[RunLike] = option(
        (), "further runs of any kind that write the output together with this one",
        Words("ensemble.runs", tuple[str, ...], ()),
    )  # fmt: skip
    average: Average = option(
        DEFAULT_AVERAGE, "what an ensemble averages: probabilities, or their logarithms",
        Words("ensemble.average", Average, DEFAULT_AVERAGE),
    )  # fmt: skip
    weights: tuple[float, ...] = option(
        (), "of the members of an ensemble, the run's own first; none: equal ones, or those that a search learned",
        Words("ensemble.weights", tuple[float, ...], ()),
    )  # fmt: skip
    rerank: RerankModel | Sequence[RerankModel] = option(
        (), "runs that rerank outputs", Words("rerank", RerankSettings, RerankSettings(), RerankModel.all_of)
    )

    n_best: Annotated[int, Range(1, 1_000_000)] = option(
        1, "outputs per input; the beam becomes at least as wide", remote="beam", flag="--n-best"
    )
    tag: str | None = option(
        None, "target language, such as de, of a run trained with several tags", remote="", flag="--tag"
    )
    split_long: bool | None = option(
        None, "read texts longer than nearly all of the training in parts; by default yes, but not to evaluate"
    )
    min_confidence: Annotated[float, Range(0.0, 1.0)] | None = option(
        None,
        "leave out outputs of a calibrated run whose confidence is lower, and mark them",
        flag="--min-confidence",
    )
    memory: str | Path | TranslationMemory | None = option(
        None, "a translation memory (.tsv, .tmx): a source that it has gets the translation there, and is marked",
        Words("memory", str | None), flag="--memory",
    )  # fmt: skip
    min_match: Annotated[float, Range(0.0, 1.0, exclusive_minimum=True)] = option(
        0.7, "with a memory: show the segment most like a source from this score on (--json)"
    )
    batch_size: Annotated[int, Range(1, 100_000)] = option(64, "inputs in a batch", flag="--batch-size")
    engine: EngineName = option("auto", "ctranslate2 is faster on a CPU; auto uses it where it gives the same text")
    precision: Precision = option(
        "float32", "bfloat16 on a GPU and int8 with ctranslate2 are faster; texts may differ a little"
    )
    scores: bool = True  # False: only texts are needed, so neither scores nor confidences are computed

    def __post_init__(self) -> None:
        for name, limits in LIMITS.items():
            if (value := getattr(self, name)) is not None and not limits.holds(value):
                raise ConfigError(f"{name}: found {value}, expected {limits.words}")
        for name in ("rerank", "ensemble", "weights"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        if self.weights and not (all(0 <= weight < math.inf for weight in self.weights) and any(self.weights)):
            raise ConfigError(
                f"ensemble.weights: found {', '.join(map(str, self.weights))}, expected finite numbers of at least 0, "
                "not all 0"
            )

    def search_config(self, run: SearchConfig) -> SearchConfig:
        """The search settings of this call: those of a run, changed where an option is not None.

        The beam is as wide as the outputs asked for.
        """
        names = fields_of(SearchConfig)
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        config = settings.build(SearchConfig, settings.as_table(run) | given) if given else run
        if self.diversity_penalty is not None and config.beam_groups == 1:
            raise ConfigError(
                f"diversity_penalty: found {config.diversity_penalty}, expected beam_groups above 1 with it"
            )
        if self.n_best <= config.beam or (self.method is not None and not self.method.uses_beam):
            return config
        if self.n_best > MAX_BEAM:
            raise ConfigError(f"n_best: found {self.n_best}, expected at most {MAX_BEAM} of a beam search")
        return replace(config, beam=math.ceil(self.n_best / config.beam_groups) * config.beam_groups)

    def over(self, defaults: DecodingOptions) -> DecodingOptions:
        """These options, with the values of `defaults` where an option has its own default."""
        changed = {name: getattr(self, name) for name in changed_fields(self)}
        return replace(defaults, **changed)


OPTIONS = {name: option for name, option in fields_of(DecodingOptions).items() if option.metadata}
WORDS: dict[str, Words] = {
    name: option.metadata["words"] or Words(name, type_hints(DecodingOptions)[name], option.default)
    for name, option in OPTIONS.items()
}
LIMITS = {  # of numbers; `search_config` checks those of the search
    name: limits
    for name, words in WORDS.items() if words.place == name
    for limits in accepted(words.annotation).scalars.values() if limits.words
}  # fmt: skip


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


# --- The settings of commands


def fields_at(table: str, flags: bool = True) -> list[tuple[str, Any, Any]]:
    """The settings in a table, for `make_dataclass`."""
    made = []
    for name, words in WORDS.items():
        inside, _, key = words.place.rpartition(".")
        if inside == table:
            about = OPTIONS[name].metadata
            flag = about["flag"] if flags else ""
            made.append((key, words.annotation, setting(words.default, help=about["help"] + words.note, flag=flag)))
    return made


# A server has no flags for its search.
_Overrides: Any = make_dataclass("_Overrides", fields_at("search", flags=False), frozen=True)


@dataclass(frozen=True)
class SearchOverrides(_Overrides):  # type: ignore[misc]  # its fields are made from DecodingOptions
    """Settings of a search; one left out is the run's own."""

    def given(self) -> dict[str, Any]:
        """The settings that are not left out."""
        values = {name: getattr(self, name) for name in fields_of(SearchConfig)}
        return {name: value for name, value in values.items() if value not in (None, OWN)}


_tables: Any = {
    name: make_dataclass(name.title(), fields_at(name), frozen=True) for name in ("search", "constraints", "ensemble")
}
_fields = [(name, table, field(default=table())) for name, table in _tables.items()]
DecodingSettings: Any = make_dataclass("DecodingSettings", [*_fields, *fields_at("")], frozen=True)


def decoding_options(values: Any, *, scores: bool = True) -> DecodingOptions:
    """The options that `DecodingSettings` stand for, with the files they name read."""
    given: dict[str, Any] = {}
    for name, words in WORDS.items():
        try:
            given[name] = words.read(attrgetter(words.place)(values))
        except ConfigError as error:
            raise ConfigError(f"{words.place}: {error}") from None
    options = DecodingOptions(**given, scores=scores)
    if (method := options.method) is not None and not method.uses_beam and options.beam and not options.rerank:
        raise ConfigError(f'search.beam: found method = "{method.kind}" with it, which is no beam search')
    return options
