"""Characters or bytes as tokens; features at the end of a text may be whole tokens.

Features are such as the tags of inflection: "sehen V;PST;3;SG" is a lemma and four features. `marks` describes their
layout: its first character stands before the features, its last one between two of them (" ;"). A feature keeps the
mark before it, so the parts of a text joined are the text, and " V" is not the letter "V".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Annotated, ClassVar

from dragoman.base.config import Range, setting
from dragoman.data.source_reader import Span
from dragoman.data.tokenizers.base import (
    EOS,
    SPECIALS,
    UNK,
    UNKNOWN_SURFACE,
    NoTextError,
    VocabularyTokenizer,
    content_hash,
    most_frequent,
)

LAYOUTS = (" ;", " |", " ,", " +", "#;", "#|", "++")  # that `find_features` looks for
TOLERATED = 0.01  # share of sources without features, such as stray lines
FIRST_BYTE = EOS + 1  # the id of byte 0
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))


@dataclass(frozen=True)
class CharactersConfig:
    """Every Unicode code point is a token, the space included."""

    kind: ClassVar[str] = "characters"
    vocab_size: Annotated[int, Range(5)] = setting(
        10_000, help="maximum number of tokens, the 4 special tokens included"
    )
    min_count: Annotated[int, Range(1)] = setting(1, help="characters that occur less often become <unk>")
    features: str = setting(
        "",
        help="source texts end in features that are whole tokens: the character before the features and the one "
        'between them; " ;" reads "sehen V;PST;SG" as s, e, h, e, n, V, PST, SG',
    )

    def problems(self) -> Iterator[str]:
        if len(self.features) > 2 or self.features.isalnum():
            yield (
                f'features: found "{self.features}", expected one or two characters that are no letters, such as " ;"'
            )


class CharacterTokenizer(VocabularyTokenizer):
    """Splits a text into its code points, and features into whole tokens."""

    kind = CharactersConfig.kind
    config: CharactersConfig

    @classmethod
    def train(cls, config: CharactersConfig, texts: Iterable[str], targets: Iterable[str] = ()) -> CharacterTokenizer:
        """Learn the vocabulary: the most frequent characters and features; `targets` are texts without features."""
        tokens = chain((_split(text, config.features) for text in texts), targets)
        return cls(config, most_frequent(tokens, config.vocab_size, config.min_count, config.kind))

    def without_features(self) -> CharacterTokenizer:
        """The tokenizer of targets, which have no features: the same vocabulary, one id per code point."""
        return type(self)(replace(self.config, features=""), self._tokens[len(SPECIALS) :])

    def encode(self, text: str) -> list[int]:
        get = self._ids.get
        return [get(token, UNK) for token in self.split(text)]

    def split(self, text: str) -> Sequence[str]:
        return _split(text, self.config.features)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.surfaces(ids))

    def spans(self, text: str) -> list[Span]:
        """One character per token; a feature covers the mark before it, too."""
        ends = accumulate(map(len, self.split(text)), initial=0)
        return list(pairwise(ends))

    def fingerprint(self) -> str:
        plain = super().fingerprint()
        return content_hash({"tokens": plain, "features": self.config.features}) if self.config.features else plain


def _split(text: str, marks: str) -> Sequence[str]:
    if not marks:
        return text
    stem, features = split_features(text, marks)
    return [*stem, *features]


def split_features(text: str, marks: str) -> tuple[str, list[str]]:
    """The text before the features, and the features, each with the mark before it."""
    first, between = marks[0], marks[-1]
    start = text.find(first) if first == between else text.rfind(first)
    if start < 0:
        return text, []
    features = re.split(f"(?={re.escape(between)})", text[start + 1 :])
    return text[:start], [first + features[0], *features[1:]]


def find_features(sources: Iterable[str]) -> str:
    """The marks of the features that (nearly) all sources have at their end; "" if they have none.

    There must be few different features, used again and again, and most sources must have more than one.
    """
    texts = list(sources)
    return next((marks for marks in LAYOUTS if texts and _fits(texts, marks)), "")


def _fits(texts: list[str], marks: str) -> bool:
    counts: Counter[str] = Counter()
    several = misfits = 0
    for text in texts:
        stem, features = split_features(text, marks)
        fits = stem and features and marks[-1] not in stem and all(re.fullmatch(r"\S+", one[1:]) for one in features)
        if not fits:
            misfits += 1
            if misfits > TOLERATED * len(texts):
                return False
            continue
        several += len(features) > 1
        counts.update(features)
    return several * 2 > len(texts) and counts.total() >= 3 * len(counts)


@dataclass(frozen=True)
class BytesConfig:
    """Bytes of UTF-8: 256 tokens for every language, and no text is unknown (Xue et al. 2022)."""

    kind: ClassVar[str] = "bytes"


class ByteTokenizer(VocabularyTokenizer):
    """Splits a text into the bytes of its UTF-8 form."""

    kind = BytesConfig.kind

    def __init__(self, config: BytesConfig, tokens: Sequence[str] = BYTE_TOKENS) -> None:
        super().__init__(config, tokens)
        self.space = FIRST_BYTE + ord(" ")

    @classmethod
    def train(cls, config: BytesConfig, texts: Iterable[str]) -> ByteTokenizer:
        if not any(texts):
            raise NoTextError("no text to learn bytes from")
        return cls(config)

    def encode(self, text: str) -> list[int]:
        return [FIRST_BYTE + byte for byte in text.encode("utf-8", "replace")]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the bytes; bytes that are no UTF-8 become "\N{REPLACEMENT CHARACTER}"."""
        parts = (
            bytes([index - FIRST_BYTE]) if index >= FIRST_BYTE else UNKNOWN_SURFACE.encode() * (index == UNK)
            for index in ids
        )
        return b"".join(parts).decode("utf-8", "replace")

    def spans(self, text: str) -> list[Span]:
        """The last byte of a character covers it; those before it are empty."""
        out: list[Span] = []
        for place, character in enumerate(text):
            out += [(place, place)] * (len(character.encode("utf-8", "replace")) - 1) + [(place, place + 1)]
        return out


@dataclass(frozen=True)
class CTCCharactersConfig:
    """The characters of an imported CTC model. They cannot be learned from data; `dragoman import` makes them."""

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
