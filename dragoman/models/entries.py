"""How an encoder or decoder is registered: one entry in a table (`encoders/sequence.py`, `registry.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from dragoman.base.config import Table


@dataclass(frozen=True)
class Entry:
    """One architecture: its settings, its module and settings for the contract tests."""

    config: Any  # a frozen dataclass with `kind: ClassVar[str]`
    module: Any  # a subclass of Encoder or Decoder, built from (config, …): see the classes below
    example: Any  # tiny settings without dropout: the contract tests run every law over them
    larger_example: Any = None  # settings that learn to copy and reverse four words in 180 steps; None: the example


@dataclass(frozen=True)
class EncoderEntry(Entry):
    """An encoder of tokens; its module is built from (config, embedding)."""


@dataclass(frozen=True)
class SequenceEncoderEntry(EncoderEntry):
    """An encoder that can also read vectors in place of tokens: frames, image patches, words made of characters."""

    scales_embeddings: bool = False  # it multiplies its embeddings by √width, as the Transformer does


@dataclass(frozen=True)
class FeatureEncoderEntry(EncoderEntry):
    """An encoder of images or audio; its module is built from (config, features per row)."""


@dataclass(frozen=True)
class DecoderEntry(Entry):
    """A decoder; its module is built from (config, embedding, memory width)."""

    monotone: bool = False  # it aligns from left to right, so nobody expects it to reverse words


E = TypeVar("E", bound=Entry)


def table_of(noun: str, *entries: E, includes: Table[str, Any] | None = None) -> Table[str, E]:
    return Table(noun, lambda entry: [entry.config.kind], entries, includes)
