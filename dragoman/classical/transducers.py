"""The fitted models of task `translate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from dragoman.base.config import Table, imported
from dragoman.classical.model import Transducer
from dragoman.data import SourceReader
from dragoman.data.tokenizers import Tokenizer


class TransducerEntry(NamedTuple):
    """A kind of fitted model: its settings, its class, and what builds the unfitted model."""

    config: Any
    model: type[Transducer]
    build: Callable[..., Transducer]  # (model, config, source, target, shared)


def _from_tokenizers(model: Any, config: Any, source: SourceReader, target: Tokenizer, shared: bool) -> Transducer:
    return cast(Transducer, model(config, source, target))


def _late(address: str, build: Callable[..., Transducer] = _from_tokenizers) -> Callable[[], TransducerEntry]:
    """The entry of settings and a class; `build` gets the class first."""
    return imported(lambda config, model: TransducerEntry(config, model, build), f"dragoman.classical.{address}")


TRANSDUCERS: Table[str, TransducerEntry] = Table(
    "model",
    lambda entry: [entry.config.kind],
    late={
        "copy": _late("dictionary:CopyConfig,Copy", lambda model, config, source, target, shared: model()),
        "memorise": _late(
            "dictionary:MemoriseConfig,Memorise",
            lambda model, config, source, target, shared: model(source.space, shared, len(target)),
        ),
        "nearest": _late(
            "dictionary:NearestConfig,Nearest",
            lambda model, config, source, target, shared: model(config, len(target)),
        ),
        "ngram-transducer": _late("ngram_transducer:NGramTransducerConfig,NGramTransducer"),
        "phrase-based": _late("phrase_based:PhraseBasedConfig,PhraseBased"),
        "word-aligner": _late("aligner:WordAlignerConfig,WordAlignerModel"),
    },
)


def build_transducer(config: Any, source: SourceReader, target: Tokenizer, *, shared: bool) -> Transducer:
    """The unfitted model; `shared`: source and target have one vocabulary."""
    entry = TRANSDUCERS.of(config)
    return entry.build(entry.model, config, source, target, shared)
