"""Tokenizer of an imported model: its SentencePiece file, with token ids in our order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import sentencepiece

from dragoman.config.settings import setting
from dragoman.data.source_reader import Span
from dragoman.data.tokenizers.base import (
    EOS,
    PAD,
    SOS,
    UNK,
    UNKNOWN_SURFACE,
    VocabularyTokenizer,
    content_hash,
    without_surrogates,
)

_SPACE_MARK = "\u2581"  # how SentencePiece writes a space
# Language codes of Marian (>>fra<<), M2M-100 (__fr__), NLLB (fra_Latn) and mBART (fr_XX).
TAG = re.compile(r">>[^<>\s]+<<|__[a-z]+__|[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")


@dataclass(frozen=True)
class SentencePieceConfig:
    """The SentencePiece model of an imported run. It cannot be learned from data; `dragoman import` makes it."""

    kind: ClassVar[str] = "sentencepiece"
    prefix: str = setting("", help="the token that the tokenizer puts before every text, such as a language code")


class SentencePieceTokenizer(VocabularyTokenizer):
    """A SentencePiece model whose pieces have the ids of another vocabulary, as in Marian, M2M-100 and T5.

    A published model normalises its text (NFKC, spaces), so decoding gives the normalised text. A text may begin with a
    token of the vocabulary that is no piece, such as `>>fra<<`.
    """

    kind = SentencePieceConfig.kind
    config: SentencePieceConfig
    suffixes = ("json", "model", "vocabulary.jsonl")

    def __init__(self, config: SentencePieceConfig, model: bytes, tokens: Sequence[str]) -> None:
        """`tokens` are the texts of all ids after the special tokens; `model` is the SentencePiece file."""
        super().__init__(config, tokens)
        self.space, self.model = None, model
        self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        learned = {self._processor.id_to_piece(index) for index in range(self._processor.get_piece_size())}
        self._tags = {token for token in self._ids if TAG.fullmatch(token) and token not in learned}
        if config.prefix and config.prefix not in self._ids:
            raise ValueError(f"prefix: found {config.prefix!r}, which is not in the vocabulary")

    def _without_tag(self, text: str) -> tuple[list[int], int]:
        """The id of a tag at the front of a text, and where the rest begins."""
        first = text.split(maxsplit=1)[:1]
        if first and first[0] in self._tags:
            return [self._ids[first[0]]], text.index(first[0]) + len(first[0])
        return ([self._ids[self.config.prefix]] if self.config.prefix else []), 0

    def encode(self, text: str) -> list[int]:
        """The ids of a text; pieces that the vocabulary lacks become <unk>."""
        tag, start = self._without_tag(text)
        pieces = self._processor.encode(without_surrogates(text[start:]), out_type=str)
        return tag + [self._ids.get(piece, UNK) for piece in pieces]

    def decode(self, ids: Sequence[int]) -> str:
        pieces = []
        for index in ids:
            token = self._tokens[index]
            if index == UNK:
                pieces.append(_SPACE_MARK + UNKNOWN_SURFACE)
            elif index not in (PAD, SOS, EOS) and token not in self._tags:
                pieces.append(token)
        text: str = self._processor.decode_pieces(pieces)
        return text.replace(_SPACE_MARK, " ").strip()

    def spans(self, text: str) -> list[Span]:
        """The characters of the text behind every piece; a prefix covers none."""
        tag, start = self._without_tag(text)
        clean = without_surrogates(text[start:])
        spans: list[Span] = [(0, start)] * len(tag)
        for piece in self._processor.encode(clean, out_type="immutable_proto").pieces:
            spans.append((start + piece.begin, start + piece.end))
        return spans

    def contents(self) -> list[str | bytes]:
        settings, vocabulary = super().contents()
        return [settings, self.model, vocabulary]

    def model_pieces(self) -> list[str]:
        """The pieces of the SentencePiece file, in its own order."""
        found: list[str] = self._processor.id_to_piece(list(range(self._processor.get_piece_size())))
        return found

    def fingerprint(self) -> str:
        """A hash of the ids, of the pieces with their scores and of the prefix."""
        indices = list(range(self._processor.get_piece_size()))
        pieces = list(zip(self._processor.id_to_piece(indices), self._processor.get_score(indices), strict=True))
        content = {"kind": self.kind, "prefix": self.config.prefix, "tokens": self._tokens, "pieces": pieces}
        return content_hash(content)
