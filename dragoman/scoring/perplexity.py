"""How well a text was predicted, in figures that can be compared across tokenizers (FIELD I5).

The nats of a text do not depend on how it was cut into tokens, if every token of it was predicted: so they are divided
by what the text itself has, its words, characters or bytes, and not only by its tokens. The end of a line counts
as one word and one character, for it is predicted like them; WikiText's perplexities count it so too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class TextSize:
    """What a text has, ends of lines included; sizes add up."""

    words: int = 0  # between spaces
    characters: int = 0
    bytes: int = 0  # in UTF-8

    def __add__(self, other: TextSize) -> TextSize:
        return TextSize(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))


def text_size(lines: Iterable[str]) -> TextSize:
    """The size of lines without their ends."""
    words = characters = count = 0
    for line in lines:
        words += len(line.split()) + 1
        characters += len(line) + 1
        count += len(line.encode("utf-8", "surrogatepass")) + 1
    return TextSize(words, characters, count)


@dataclass(frozen=True)
class Likelihood:
    """The nats a model needs for a text: −Σ log p of its tokens, ends of lines included."""

    nats: float
    tokens: int
    size: TextSize

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.nats / max(1, self.tokens)

    @property
    def perplexity(self) -> float:
        """Of a token; comparable among models with the same tokenizer alone."""
        return _perplexity(self.nats, self.tokens)

    @property
    def word_perplexity(self) -> float:
        """Of a word."""
        return _perplexity(self.nats, self.size.words)

    @property
    def character_nats(self) -> float:
        """Nats a character."""
        return self.nats / max(1, self.size.characters)

    @property
    def character_perplexity(self) -> float:
        """Of a character."""
        return _perplexity(self.nats, self.size.characters)

    @property
    def byte_bits(self) -> float:
        """Bits a byte."""
        return self.nats / math.log(2) / max(1, self.size.bytes)

    def scores(self) -> dict[str, float]:
        """All of them by name."""
        names = ("loss", "perplexity", "word_perplexity", "character_perplexity", "character_nats", "byte_bits")
        return {name: getattr(self, name) for name in names}


def _perplexity(nats: float, count: int) -> float:
    return math.exp(min(nats / max(1, count), 700.0))  # what is larger is no float
