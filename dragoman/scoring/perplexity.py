"""Perplexity of a text per token, word and character, and bits per byte.

The negative log-likelihood of a text does not depend on its tokenization if every token of it was predicted. Divided by
the text's own words, characters or bytes it can be compared across tokenizers. The end of a line counts as one word and
one character because the model predicts it like them; WikiText perplexities count it the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import partial

from dragoman.scoring.metric import Metric


@dataclass(frozen=True)
class TextSize:
    """The size of a text in several units, ends of lines included; sizes add up."""

    words: int = 0  # separated by whitespace
    characters: int = 0
    bytes: int = 0  # in UTF-8

    def __add__(self, other: TextSize) -> TextSize:
        return TextSize(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


def text_size(lines: Iterable[str]) -> TextSize:
    """The size of lines that are given without their ends."""
    words = characters = count = 0
    for line in lines:
        words += len(line.split()) + 1
        characters += len(line) + 1
        count += len(line.encode("utf-8", "surrogatepass")) + 1
    return TextSize(words, characters, count)


@dataclass(frozen=True)
class TextLikelihood:
    """The negative log-likelihood of a text in nats, over all its tokens, ends of lines included."""

    nats: float
    tokens: int
    size: TextSize

    @property
    def loss(self) -> float:
        return self.nats / max(1, self.tokens)

    @property
    def perplexity(self) -> float:
        """Perplexity per token; comparable only between models with the same tokenizer."""
        return _perplexity(self.nats, self.tokens)

    def scores(self) -> dict[str, float]:
        size = self.size
        return {
            "loss": self.loss,
            "perplexity": self.perplexity,
            "word_perplexity": _perplexity(self.nats, size.words),
            "character_perplexity": _perplexity(self.nats, size.characters),
            "character_nats": self.nats / max(1, size.characters),
            "byte_bits": self.nats / math.log(2) / max(1, size.bytes),
        }


def _perplexity(nats: float, count: int) -> float:
    return math.exp(min(nats / max(1, count), 700.0))  # a larger exponential overflows


# The loss orders checkpoints as every perplexity does, so the loss alone selects them.
nats = partial(Metric, outputs=("likelihood",), higher_is_better=False, percent=False)
measure = partial(nats, selects_checkpoints=False)
METRICS = (
    nats("loss", "loss", "negative log-likelihood per token in nats", decimals=".3f"),
    measure("perplexity", "perplexity", "perplexity per token"),
    measure("word_perplexity", "word perplexity", "perplexity per word", decimals=".4g"),
    measure("character_perplexity", "character perplexity", "perplexity per character", decimals=".4g"),
    measure("character_nats", "character nats", "nats per character", decimals=".4g"),
    measure("byte_bits", "bits per byte", "bits per UTF-8 byte", decimals=".4g"),
    Metric(
        "token_accuracy",
        "token accuracy",
        "share of reference tokens that are the model's first choice",
        outputs=("likelihood",),
        selects_checkpoints=False,
    ),
)
