"""Bytes of UTF-8 as tokens: nothing is learned, and no text is unknown (Xue et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dragoman.data.source_reader import Span
from dragoman.data.tokenizers.base import EOS, SPECIALS, UNK, UNKNOWN_SURFACE, NoTextError, VocabularyTokenizer

FIRST = EOS + 1  # the id of byte 0
UNKNOWN = UNKNOWN_SURFACE.encode()
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))


@dataclass(frozen=True)
class BytesConfig:
    """Bytes of UTF-8: 256 tokens for every language."""

    kind: ClassVar[str] = "bytes"


class ByteTokenizer(VocabularyTokenizer):
    """Splits a text into the bytes of its UTF-8 form."""

    kind = BytesConfig.kind

    def __init__(self, config: BytesConfig, tokens: Sequence[str] = BYTE_TOKENS) -> None:
        super().__init__(config, tokens)
        self.space = FIRST + ord(" ")

    @classmethod
    def train(cls, config: BytesConfig, texts: Iterable[str]) -> ByteTokenizer:
        """The one tokenizer of this kind; an error if there is no text."""
        if not any(texts):
            raise NoTextError("no text to learn bytes from")
        return cls(config)

    def encode(self, text: str) -> list[int]:
        return [FIRST + byte for byte in text.encode("utf-8", "replace")]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the bytes; bytes that are no UTF-8 become "\N{REPLACEMENT CHARACTER}"."""
        parts = (bytes([index - FIRST]) if index >= FIRST else UNKNOWN * (index == UNK) for index in ids)
        return b"".join(parts).decode("utf-8", "replace")

    def spans(self, text: str) -> list[Span]:
        """The last byte of a character covers it; those before it are empty."""
        out: list[Span] = []
        for place, character in enumerate(text):
            out += [(place, place)] * (len(character.encode("utf-8", "replace")) - 1) + [(place, place + 1)]
        return out


assert len(SPECIALS) == FIRST
