"""Which collator makes batches of what a reader gives."""

from __future__ import annotations

from dragoman.data.collate import (
    ConcatenatedTextsCollator,
    SeparateTextsCollator,
    SeriesCollator,
    SourceCollator,
    TokenCollator,
)
from dragoman.data.media.feature_extractor import extractor_of
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.numbers import NumberScaler


def source_collator(reader: SourceReader, apart: bool = False, ends: int = 0) -> SourceCollator:
    """The collator of what a reader gives; two texts are `apart`, or one row with so many <eos> between, 0: <sep>."""
    if reader.reads_files:
        return extractor_of(reader).collator
    if isinstance(reader, NumberScaler):
        return SeriesCollator(reader.channels)
    if apart:
        assert reader.separator is not None
        return SeparateTextsCollator(reader.separator)
    if ends and reader.separator is not None:
        return ConcatenatedTextsCollator(reader.separator, ends)
    return TokenCollator()
