"""What computes for a predictor: its own model or an ensemble, and the engine that searches with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dragoman.data.tokenizers.pair_codec import PairCodec
from dragoman.decoding.ensemble import DEFAULT_AVERAGE, Ensemble
from dragoman.decoding.options import DecodingOptions
from dragoman.exchange.choice import EngineChoice
from dragoman.inference.loaded import Seq2SeqRun, average_models, check_same_vocabularies, load_seq2seq, shared_codec


@dataclass(frozen=True)
class Backend:
    """A model to search with, how long its outputs may become, and the engine that may search in place of torch."""

    model: Any
    length_ratio: float
    engines: EngineChoice
    codec: PairCodec
    own: bool = True  # the model of the run folder, which a calibration there is for


def open_backend(first: Seq2SeqRun, options: DecodingOptions) -> Backend:
    """The backend of a run; with `options.ensemble` the models of all runs are averaged token by token."""
    tokenizers = (first.source_tokenizer, first.target_tokenizer)
    if first.half != (options.precision == "bfloat16"):
        first = Seq2SeqRun(first.run, str(first.device), options.precision)
    runs = [first, *(load_seq2seq(run, str(first.device), options.precision) for run in options.ensemble)]
    for other in runs[1:]:
        check_same_vocabularies(first.run, other.run, "an ensemble")
    models = [model for run in runs for model in run.models]
    own = len(runs) == 1 and (len(models) == 1 or options.average == DEFAULT_AVERAGE)
    model = first.model if own else average_models(models, options.average)
    engines = EngineChoice(
        first.run, tokenizers, options.engine, options.precision, first.device, is_ensemble=isinstance(model, Ensemble)
    )
    codec = first.codec if own else shared_codec([run.codec for run in runs], tokenizers)
    return Backend(model, max(run.length_ratio for run in runs), engines, codec, own)
