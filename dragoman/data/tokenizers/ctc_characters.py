"""Character tokenizer of an imported CTC model: `|` between words, and tokens of several characters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dragoman.config.settings import setting
from dragoman.data.source_reader import Span
from dragoman.data.tokenizers.base import UNK, VocabularyTokenizer, content_hash


@dataclass(frozen=True)
class CTCCharactersConfig:
    """The characters of an imported run. They cannot be learned from data; `dragoman import` makes them."""

    kind: ClassVar[str] = "ctc-characters"
    upper: bool = setting(False, help="the vocabulary has upper case; texts are converted, outputs are in lower case")


class CTCCharacterTokenizer(VocabularyTokenizer):
    """One token per character, or the longest of the tokens with several; outputs have no spaces at their ends."""

    kind = CTCCharactersConfig.kind
    config: CTCCharactersConfig

    def __init__(self, config: CTCCharactersConfig, tokens: Sequence[str]) -> None:
        super().__init__(config, tokens)
        several = sorted((token for token in tokens if len(token) > 1), key=len, reverse=True)
        self._token = re.compile("|".join([*(rf"\s*({re.escape(token)})\s*" for token in several), "."]), re.DOTALL)

    def encode(self, text: str) -> list[int]:
        """One id per token; spaces around a token of several characters belong to it."""
        return [self._ids.get(token, UNK) for token, _ in self._split(text)]

    def decode(self, ids: Sequence[int]) -> str:
        text = "".join(self.surfaces(ids)).strip()
        return text.lower() if self.config.upper else text

    def spans(self, text: str) -> list[Span]:
        return [span for _, span in self._split(text)]

    def _split(self, text: str) -> Iterator[tuple[str, Span]]:
        for match in self._token.finditer(text):
            if match.lastindex:
                yield match[match.lastindex], match.span()
            else:  # upper case may be longer: "ß" becomes "SS"
                char = match[0].upper() if self.config.upper else match[0]
                yield from ((part, match.span()) for part in char)

    def fingerprint(self) -> str:
        return content_hash({"tokens": super().fingerprint(), "upper": self.config.upper})
