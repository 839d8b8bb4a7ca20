"""Tagging examples: a sentence and one tag per word."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.formats.base import ExampleFormat, Row, TokenizerPair, TrainingExamples, sources, targets
from dragoman.data.readers.conll import read_conll, split_words
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.labels import LabelVocabulary, UnknownLabelError
from dragoman.data.tokenizers.load import train_tokenizer


class TagFormat(ExampleFormat):
    """Words and one tag per word.

    A target row holds the n tags, then the n positions of each word's first token.
    """

    name = "tags"

    def read(self, config: DataConfig, entry: str | Pairs, several_references: bool) -> Iterator[Example | Fault]:
        """Sentences in CoNLL columns, CoNLL-U, or with words and tags on one line."""
        limit = config.max_characters
        items = read_conll(entry, columns=config.columns, header=config.header, max_characters=limit)
        return (item if isinstance(item, Fault) else self.validate(item) for item in items)

    def train_tokenizers(
        self, config: DataConfig, tokenizers: TokenizersConfig, examples: TrainingExamples
    ) -> TokenizerPair:
        source = train_tokenizer(tokenizers.source, sources(examples, "learning source units"))
        tags = (tag for text in targets(examples, "learning tags") for tag in text.split(" "))
        return source, LabelVocabulary.of(tags)

    def encode(self, examples: Sequence[Example], source: SourceReader, target: Tokenizer) -> list[Row | Fault]:
        assert isinstance(target, LabelVocabulary)
        out: list[Row | Fault] = []
        source_rows = source.encode_batch([example.source for example in examples])
        for example, row in zip(examples, source_rows, strict=True):
            tags: list[int] = []
            try:
                for tag in example.references[0].split(" "):
                    tags.append(target.label_id(tag))
            except UnknownLabelError as error:
                out.append(Fault(example.word_location(len(tags)), "unknown-label", str(error)))
                continue
            out.append((row, [*tags, *self.positions(example.source, source)]))
        return out

    def fits(self, row: Row, max_length: int) -> bool:
        return len(row[0]) <= max_length

    def target_count(self, row: Row) -> int:
        return len(row[1]) // 2

    def encode_inputs(
        self, texts: Sequence[str], source: SourceReader, first: int = 1
    ) -> tuple[list[list[Any]], list[list[Any]] | None]:
        """The tokens; and zeros in place of the tags, with the positions of words."""
        texts = [" ".join(split_words(text)) for text in texts]
        positions = [self.positions(text, source) for text in texts]
        return source.encode_batch(texts), [[*[0] * len(row), *row] for row in positions]

    def positions(self, text: str, source: SourceReader) -> list[int]:
        """The position of every word's first token."""
        return word_positions(text, source)

    def column_dtypes(self, source: SourceReader, target: Tokenizer, max_length: int) -> Mapping[str, str]:
        return {"target": "uint16" if max(max_length, len(target)) < 1 << 16 else "uint32"}


def word_positions(text: str, tokenizer: SourceReader) -> list[int]:
    """The position of every word's first token: the token that covers its first character.

    Words are separated by single spaces. A word that the tokenizer drops (control characters alone) has the token
    before it.
    """
    words = text.split(" ")
    word_starts = list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))
    positions: list[int] = []
    for position, (first, end) in enumerate(tokenizer.spans(text)):
        while first < end and text[first] == " ":
            first += 1
        if first < end and (word := bisect_right(word_starts, first) - 1) >= len(positions):
            dropped = word - len(positions)
            positions += [*[max(0, position - 1)] * dropped, position]
    return positions + [positions[-1] if positions else 0] * (len(words) - len(positions))
