"""Text pairs: a source text and one or more target texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dragoman.data.batch import TokensWithCopies
from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.formats.base import ExampleFormat, Row, TokenizerPair, TrainingExamples, sources, targets
from dragoman.data.readers.pairs import read_pairs
from dragoman.data.source_reader import SourceReader
from dragoman.data.store import COPIES
from dragoman.data.tokenizers.base import UNK, Tokenizer
from dragoman.data.tokenizers.characters import CharactersConfig, CharacterTokenizer
from dragoman.data.tokenizers.load import train_tokenizer
from dragoman.data.tokenizers.pair_codec import MAX_COPIES, PairCodec, copying_codec


class PairFormat(ExampleFormat):
    """A source text and one or more target texts."""

    name = "pairs"

    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
        return read_pairs(entry, replace(config.reading, several_references=several_references))

    def train_tokenizers(
        self, config: DataConfig, tokenizers: TokenizersConfig, examples: TrainingExamples
    ) -> TokenizerPair:
        """One joint vocabulary, unless the target has a tokenizer of its own."""
        source = tokenizers.source
        if tokenizers.target is None and isinstance(source, CharactersConfig) and source.features:
            texts = sources(examples, "learning source units"), targets(examples, "learning target units")
            characters = CharacterTokenizer.train(source, *texts)
            return characters, characters.without_features()
        if tokenizers.target is None:
            both = (
                text
                for example in examples.train("learning the vocabulary")
                for text in (example.source, example.references[0])
            )
            joint = train_tokenizer(source, both)
            return joint, joint
        return super().train_tokenizers(config, tokenizers, examples)

    def train_target(self, tokenizers: TokenizersConfig, examples: TrainingExamples) -> Tokenizer:
        assert tokenizers.target is not None, "otherwise both share one vocabulary"
        return train_tokenizer(tokenizers.target, targets(examples, "learning target units"))

    def fits(self, row: Row, max_length: int) -> bool:
        return len(row[0]) <= max_length and len(row[1]) <= max_length

    def encode(self, examples: Sequence[Example], source: SourceReader, target: Tokenizer) -> list[Row | Fault]:
        """The tokens of the source, its language tag included, and of the first reference."""
        inputs = [example.model_input for example in examples]
        texts = [example.references[0] for example in examples]
        return list(zip(*self.codec(source, target).encode_pairs(inputs, texts), strict=True))


class CopyFormat(PairFormat):
    """The same for models that copy source tokens which the target vocabulary lacks."""

    name = "copied pairs"
    store_version = "column of copies"

    def codec(self, source: SourceReader, target: Tokenizer) -> PairCodec:
        return copying_codec(source, target)

    def unknown_count(self, row: Sequence[Any]) -> int:
        copies = row.copies if isinstance(row, TokensWithCopies) else [0] * len(row)
        return sum(token == UNK and not copy for token, copy in zip(row, copies, strict=True))

    def column_dtypes(self, source: SourceReader, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        target_ids = len(target) + MAX_COPIES
        dtypes = {"target": "uint16" if target_ids <= 1 << 16 else "uint32"}
        return dtypes | ({COPIES: "uint8"} if self.codec(source, target).copies else {})


PAIR_FORMAT: ExampleFormat = PairFormat()
COPY_FORMAT: ExampleFormat = CopyFormat()
