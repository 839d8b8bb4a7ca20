"""Character tokenizer: every Unicode code point is a token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from dragoman.config.settings import Range, setting
from dragoman.data.tokenizers.base import UNK, Span, VocabularyTokenizer, most_frequent


@dataclass(frozen=True)
class CharactersConfig:
    """Every Unicode code point is a token, the space included."""

    kind: ClassVar[str] = "characters"
    vocab_size: Annotated[int, Range(5)] = setting(
        10_000, help="maximum number of tokens, the 4 special tokens included"
    )
    min_count: Annotated[int, Range(1)] = setting(1, help="characters that occur less often become <unk>")


class CharacterTokenizer(VocabularyTokenizer):
    """Splits a text into its code points."""

    kind = CharactersConfig.kind

    @classmethod
    def train(cls, config: CharactersConfig, texts: Iterable[str]) -> CharacterTokenizer:
        """Learn the vocabulary: the most frequent characters."""
        return cls(config, most_frequent(texts, config.vocab_size, config.min_count, config.kind))

    def encode(self, text: str) -> list[int]:
        """One id per code point."""
        get = self._ids.get
        return [get(character, UNK) for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        """The characters, joined."""
        return "".join(self.surfaces(ids))

    def spans(self, text: str) -> list[Span]:
        """One character per token."""
        return [(index, index + 1) for index in range(len(text))]
