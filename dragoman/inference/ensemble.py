"""What computes for a predictor: one run's model or an ensemble, and the engine that searches with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dragoman.decoding.ensemble import Ensemble
from dragoman.decoding.options import DecodingOptions
from dragoman.exchange.choice import EngineChoice
from dragoman.inference.loaded import LoadedRun, check_vocabularies, opened


@dataclass(frozen=True)
class Backend:
    """A model to search with, how long its outputs may become, and the engine that may search in place of torch."""

    model: Any
    length_ratio: float
    engines: EngineChoice


def open_backend(first: LoadedRun, options: DecodingOptions) -> Backend:
    """The backend of a run; with `options.ensemble` all runs are averaged token by token."""
    tokenizers = (first.source_tokenizer, first.target_tokenizer)
    engines = EngineChoice(first.run, tokenizers, options.engine, options.precision, first.device)
    if first.half != (options.precision == "bfloat16"):
        first = LoadedRun(first.run, str(first.device), options.precision)
    if not options.ensemble:
        return Backend(first.model, first.length_ratio, engines)
    runs = [first, *(opened(run, str(first.device), options.precision) for run in options.ensemble)]
    for other in runs[1:]:
        check_vocabularies(first, other, "an ensemble")
    model = Ensemble([run.model for run in runs], options.average)
    return Backend(model, max(run.length_ratio for run in runs), engines)
