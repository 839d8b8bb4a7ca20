"""Decoding options as the command line writes them: `search.beam=8 constraints.require=ship method=sampling`.

Nothing here imports torch, so that help is quick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dragoman.config.settings import Range, setting
from dragoman.decoding.config import SearchConfig
from dragoman.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dragoman.decoding.options import DecodingOptions


@dataclass(frozen=True)
class ConstraintSettings:
    """What every output must satisfy."""

    prefix: str | None = setting(None, help="every output begins with this text")
    forbid: tuple[str, ...] = setting((), help="no output contains these texts, not even inside words")
    require: tuple[str, ...] = setting((), help="every output contains these phrases")
    allow: str | None = setting(None, help="a file; every output is one of its lines")
    pattern: str | None = setting(None, help="every output matches this regular expression as a whole")
    constrain: tuple[str, ...] = setting((), help="NAME=TEXT: every output satisfies the registered constraint NAME")
    terminology: str | None = setting(
        None, help="a file of source and target terms: if an input has the first, its output has the second"
    )
    placeholders: bool = setting(False, help="copy tags, {variables} and addresses of the input to the output")

    def problems(self) -> Iterator[str]:
        for name in ("forbid", "require"):
            phrases = getattr(self, name)
            if twice := next((phrase for phrase in phrases if phrases.count(phrase) > 1), None):
                yield f"{name}: found '{twice}' twice, expected each phrase once"
        for name in ("prefix", "pattern"):
            if getattr(self, name) == "":
                yield f"{name}: found nothing, expected text"
        for entry in self.constrain:
            if not entry.partition("=")[2]:
                yield f"constrain: found '{entry}', expected NAME=TEXT"

    def values(self) -> dict[str, Any]:
        """The same as keywords of `DecodingOptions`, with the files they name read."""
        from dragoman.data.readers.lines import read_lines
        from dragoman.decoding.constraints.source import Terminology

        values: dict[str, Any] = {
            "prefix": self.prefix,
            "pattern": self.pattern,
            "placeholders": self.placeholders,
            "forbid": list(self.forbid) or None,
            "require": list(self.require) or None,
        }
        if self.constrain:
            values["constrain"] = {name: text for name, _, text in (entry.partition("=") for entry in self.constrain)}
        if self.allow is not None:
            values["allow"] = list(read_lines(self.allow))
            if not values["allow"]:
                raise DataError(f"{self.allow}: found no line, expected the allowed outputs, one per line")
        if self.terminology is not None:
            values["terminology"] = Terminology.read(self.terminology)
        return values


@dataclass(frozen=True)
class EnsembleSettings:
    """Runs that are averaged with the run."""

    runs: tuple[str, ...] = setting((), help="runs of any architecture with the same vocabularies")
    average: Literal["probability", "log"] | None = setting(
        None, help="average probabilities or their logarithms; none: probabilities"
    )

    def problems(self) -> Iterator[str]:
        if self.average is not None and not self.runs:
            yield "average: needs ensemble.runs"


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


@dataclass(frozen=True)
class DecodingSettings:
    """The decoding options of a command; its `method` is any of `methods.METHODS`, looked up when it is read."""

    search: SearchConfig = setting(SearchConfig(), help="beam search; what is not given is the run's own")
    method: Any = setting(None, help="another method than beam search")
    constraints: ConstraintSettings = setting(ConstraintSettings(), help="what every output must satisfy")
    ensemble: EnsembleSettings = setting(EnsembleSettings(), help="runs to average with")
    rerank: RerankSettings = setting(RerankSettings(), help="runs that rerank outputs")
    n_best: Annotated[int, Range(1, 1000)] = setting(1, help="outputs per input; needs --json")
    tag: str | None = setting(None, help="target tag, such as de, for a run trained with several; info lists them")
    min_confidence: Annotated[float, Range(0.0, 1.0)] | None = setting(
        None, help="leave out outputs of a calibrated run whose confidence is lower, and mark them"
    )
    memory: str | None = setting(
        None, help="a translation memory (.tsv, .tmx): a source that it has gets the translation there, and is marked"
    )
    min_match: Annotated[float, Range(0.0, 1.0, exclusive_minimum=True)] = setting(
        0.7, help="with a memory: show the segment most like a source from this score on (--json)"
    )
    batch_size: Annotated[int, Range(1, 100_000)] = setting(64, help="inputs in a batch")
    engine: Literal["auto", "torch", "ctranslate2"] = setting(
        "auto", help="ctranslate2 is faster on a CPU; auto uses it where it gives the same text"
    )
    precision: Literal["float32", "bfloat16", "int8"] = setting(
        "float32", help="bfloat16 on a GPU and int8 with ctranslate2 are faster; texts may differ a little"
    )


def decoding_options(values: DecodingSettings, search: Mapping[str, Any], *, scores: bool = True) -> DecodingOptions:
    """The options of settings; `search` has the search settings that were given, others are the run's."""
    from dragoman.decoding.options import DecodingOptions, RerankModel

    method, runs, weights = values.method, values.rerank.runs, values.rerank.weights
    if method is not None and not method.uses_beam and "beam" in search and not runs:
        raise ConfigError(f'search.beam: found method = "{method.kind}" with it, which is no beam search')
    average: dict[str, Any] = {} if values.ensemble.average is None else {"average": values.ensemble.average}
    same = ("n_best", "tag", "min_confidence", "memory", "min_match", "batch_size", "engine", "precision", "method")
    return DecodingOptions(
        **{name: getattr(values.search, name) for name in search},
        **{name: getattr(values, name) for name in same},
        **average,
        **values.constraints.values(),
        rerank=tuple(
            RerankModel(run, weight, values.rerank.tag)
            for run, weight in zip(runs, weights or [1.0] * len(runs), strict=True)
        ),
        ensemble=values.ensemble.runs,
        scores=scores,
    )
