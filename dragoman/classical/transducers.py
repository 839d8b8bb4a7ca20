"""The fitted models of task `translate`."""

from __future__ import annotations

from dragoman.classical.aligner import WordAlignerConfig, WordAlignerModel
from dragoman.classical.dictionary import Copy, CopyConfig, Memorise, MemoriseConfig, Nearest, NearestConfig
from dragoman.classical.model import Transducer
from dragoman.classical.ngram_transducer import NGramTransducer, NGramTransducerConfig
from dragoman.classical.phrase_based import PhraseBased, PhraseBasedConfig
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import Tokenizer

TransducerConfig = (
    CopyConfig | MemoriseConfig | NearestConfig | NGramTransducerConfig | PhraseBasedConfig | WordAlignerConfig
)
KINDS = tuple(config.kind for config in TransducerConfig.__args__)


def build_transducer(config: TransducerConfig, source: SourceReader, target: Tokenizer, *, shared: bool) -> Transducer:
    """The unfitted model; `shared`: source and target have one vocabulary."""
    match config:
        case CopyConfig():
            return Copy()
        case MemoriseConfig():
            return Memorise(source.space, shared, len(target))
        case NearestConfig():
            return Nearest(config, len(target))
        case NGramTransducerConfig():
            return NGramTransducer(config, source, target)
        case PhraseBasedConfig():
            return PhraseBased(config, source, target)
        case WordAlignerConfig():
            return WordAlignerModel(config, source, target)
