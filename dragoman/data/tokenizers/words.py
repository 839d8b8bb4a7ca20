"""Word tokenizer: words and punctuation marks, or whatever single spaces separate."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from typing import Annotated, ClassVar, Literal

from dragoman.base.config import Range, setting
from dragoman.data.source_reader import Span
from dragoman.data.tokenizers.base import UNK, UNKNOWN_SURFACE, UNSEEN, VocabularyTokenizer, most_frequent

JOINER = "￭"
# A match of `_word_pattern` is a word or one character, so no match in a text can look like this.
_ESCAPED_JOINER = "&joiner;"
_CACHED_CHUNKS = 200_000
_CACHED_CHUNK_LENGTH = 40


@dataclass(frozen=True)
class WordsConfig:
    """Words and punctuation marks as tokens, or whatever single spaces separate."""

    kind: ClassVar[str] = "words"
    vocab_size: Annotated[int, Range(5)] = setting(
        30_000, help="maximum number of tokens, the 4 special tokens included"
    )
    min_count: Annotated[int, Range(1)] = setting(1, help="words that occur less often become <unk>")
    split: Literal["punctuation", "spaces"] = setting(
        "punctuation", help="split at spaces and punctuation, or only at spaces (phonemes, text tokenised elsewhere)"
    )


class WordTokenizer(VocabularyTokenizer):
    """Words and punctuation, or tokens between spaces.

    With split="punctuation" a joiner (￭) on a punctuation token marks a side without a space. All whitespace except
    single spaces between two tokens is a token. So decode(encode(text)) == text if no token is unknown.
    """

    kind = WordsConfig.kind

    def __init__(self, config: WordsConfig, tokens: Sequence[str]) -> None:
        super().__init__(config, tokens)
        self._punctuation = config.split == "punctuation"
        self._cache: dict[str, tuple[int, ...]] = {}
        self._surfaces = [_surface(token) for token in self._tokens]
        self._surfaces[UNK] = (UNKNOWN_SURFACE, False, False)

    @classmethod
    def train(cls, config: WordsConfig, texts: Iterable[str]) -> WordTokenizer:
        tokenised: Iterable[Iterable[str]]
        if config.split == "spaces":
            tokenised = map(_split_spaces, texts)
        else:
            cached, limit = lru_cache(_CACHED_CHUNKS)(_chunk_tokens), _CACHED_CHUNK_LENGTH
            tokenised = (
                chain.from_iterable(
                    cached(chunk) if len(chunk) <= limit else _chunk_tokens(chunk) for chunk in _chunks(text)
                )
                for text in texts
            )
        return cls(config, most_frequent(tokenised, config.vocab_size, config.min_count, config.kind))

    def encode(self, text: str) -> list[int]:
        if not self._punctuation:
            get = self._ids.get
            return [get(token, UNK) for token in self.split(text)]
        cached, encode_chunk, ids = self._cache.get, self._encode_chunk, list[int]()
        for chunk in _chunks(text):
            ids.extend(cached(chunk) or encode_chunk(chunk))
        return ids

    def split(self, text: str) -> list[str]:
        return split_punctuation(text) if self._punctuation else _split_spaces(text)

    def extended(self, tokens: Sequence[str]) -> WordTokenizer:
        other = super().extended(tokens)
        other._cache = {}
        other._surfaces = [*self._surfaces, *map(_surface, tokens)]
        return other

    def _encode_chunk(self, chunk: str) -> tuple[int, ...]:
        get = self._ids.get
        ids = tuple(get(token, UNK) for token in _chunk_tokens(chunk))
        if len(chunk) <= _CACHED_CHUNK_LENGTH and len(self._cache) < _CACHED_CHUNKS:
            self._cache[chunk] = ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The tokens with spaces between them, except where a joiner says that there was none."""
        if not self._punctuation:
            return " ".join(self.surfaces(ids))
        parts: list[str] = []
        glued = True
        for index in ids:
            if index in UNSEEN:
                continue
            text, glue_before, glue_after = self._surfaces[index]
            if not (glued or glue_before):
                parts.append(" ")
            parts.append(text)
            glued = glue_after
        return "".join(parts)

    def spans(self, text: str) -> list[Span]:
        if not self._punctuation:
            return [match.span() for match in re.finditer("[^ ]+", text)]
        spans, end = list[Span](), 0
        for chunk in _chunks(text):
            first = end = text.index(chunk, end)
            for match in _word_pattern().finditer(chunk):
                spans.append((first + match.start(), first + match.end()))
            end += len(chunk)
        return spans


@cache
def _word_pattern() -> re.Pattern[str]:
    """Group 1: a word; group 2: any other character. Combining marks (Hindi vowel signs) belong to words."""
    marks = [code for code in range(0x300, 0x20000) if unicodedata.category(chr(code))[0] == "M"]
    ranges: list[list[int]] = []
    for code in (*marks, 0x200C, 0x200D):  # the (non-)joiners of Persian and Indic spelling
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    word = "".join(f"{chr(low)}-{chr(high)}" for low, high in ranges)
    return re.compile(rf"([\w{word}]+)|(.)", re.DOTALL)


def _chunks(text: str) -> list[str]:
    """Runs without whitespace. All whitespace except single spaces between two runs is a chunk of its own."""
    chunks = text.split()
    if " ".join(chunks) == text:
        return chunks
    parts: list[str] = re.findall(r"\S+|\s", text)
    last = len(parts) - 1
    return [
        part
        for index, part in enumerate(parts)
        if part != " " or index in (0, last) or parts[index - 1].isspace() or parts[index + 1].isspace()
    ]


def _chunk_tokens(chunk: str) -> list[str]:
    """The tokens of a chunk. Where a word and a punctuation mark touch, the mark carries the joiner."""
    matches: list[tuple[str, str]] = _word_pattern().findall(chunk)
    last = len(matches) - 1
    tokens = []
    for index, (word, other) in enumerate(matches):
        if word:
            tokens.append(word)
            continue
        before = JOINER if index else ""
        after = JOINER if index < last and matches[index + 1][0] else ""
        tokens.append(before + (_ESCAPED_JOINER if other == JOINER else other) + after)
    return tokens


def split_punctuation(text: str) -> list[str]:
    return [token for chunk in _chunks(text) for token in _chunk_tokens(chunk)]


def _surface(token: str) -> tuple[str, bool, bool]:
    """The text of a token, and whether it is written without a space before and after."""
    if token.isspace():
        return token, True, True
    core = token.removeprefix(JOINER).removesuffix(JOINER)
    text = JOINER if core == _ESCAPED_JOINER else core
    return text, token.startswith(JOINER), token.endswith(JOINER)


def _split_spaces(text: str) -> list[str]:
    return [token for token in text.split(" ") if token]
