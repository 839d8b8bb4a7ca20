"""The fitted models of task `translate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dragoman.classical.model import Transducer
from dragoman.config.table import Table
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import Tokenizer


class TransducerEntry(NamedTuple):
    """A kind of fitted model: its settings, and what builds the unfitted model."""

    config: Any
    build: Callable[[Any, SourceReader, Tokenizer, bool], Transducer]  # (config, source, target, shared)


def _copy() -> TransducerEntry:
    from dragoman.classical.dictionary import Copy, CopyConfig

    return TransducerEntry(CopyConfig, lambda config, source, target, shared: Copy())


def _memorise() -> TransducerEntry:
    from dragoman.classical.dictionary import Memorise, MemoriseConfig

    return TransducerEntry(
        MemoriseConfig, lambda config, source, target, shared: Memorise(source.space, shared, len(target))
    )


def _nearest() -> TransducerEntry:
    from dragoman.classical.dictionary import Nearest, NearestConfig

    return TransducerEntry(NearestConfig, lambda config, source, target, shared: Nearest(config, len(target)))


def _ngram_transducer() -> TransducerEntry:
    from dragoman.classical.ngram_transducer import NGramTransducer, NGramTransducerConfig

    return TransducerEntry(
        NGramTransducerConfig, lambda config, source, target, shared: NGramTransducer(config, source, target)
    )


def _phrase_based() -> TransducerEntry:
    from dragoman.classical.phrase_based import PhraseBased, PhraseBasedConfig

    return TransducerEntry(
        PhraseBasedConfig, lambda config, source, target, shared: PhraseBased(config, source, target)
    )


def _word_aligner() -> TransducerEntry:
    from dragoman.classical.aligner import WordAlignerConfig, WordAlignerModel

    return TransducerEntry(
        WordAlignerConfig, lambda config, source, target, shared: WordAlignerModel(config, source, target)
    )


TRANSDUCERS: Table[str, TransducerEntry] = Table(
    "model",
    lambda entry: [entry.config.kind],
    late={
        "copy": _copy,
        "memorise": _memorise,
        "nearest": _nearest,
        "ngram-transducer": _ngram_transducer,
        "phrase-based": _phrase_based,
        "word-aligner": _word_aligner,
    },
)


def build_transducer(config: Any, source: SourceReader, target: Tokenizer, *, shared: bool) -> Transducer:
    """The unfitted model; `shared`: source and target have one vocabulary."""
    return TRANSDUCERS.of(config).build(config, source, target, shared)
