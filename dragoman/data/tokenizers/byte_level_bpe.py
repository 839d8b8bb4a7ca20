"""Byte-level BPE tokenizer of GPT-2 and RoBERTa (Radford et al. 2019, section 2.2)."""

from __future__ import annotations

import heapq
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dragoman.base.config import setting
from dragoman.data.source_reader import Span
from dragoman.data.tokenizers.base import (
    UNK,
    UNKNOWN_SURFACE,
    UNSEEN,
    Read,
    VocabularyTokenizer,
    WordCache,
    read_vocabulary,
    without_surrogates,
)

Merges = Sequence[tuple[str, str]]
WHITE_SPACE = "\t\n\x0b\x0c\r\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
# GPT-2's rule over classes of characters: see `_CharacterClasses`.
_WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[a-zA]+| ?1+| ?['!]+|[ \t]+(?![a-zA1'!])|[ \t]+")


def printable_bytes() -> list[str]:
    """The character that stands for each byte: itself where it can be printed, else one from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256)]


BYTES = printable_bytes()
BYTE_OF = {char: byte for byte, char in enumerate(BYTES)}


class _CharacterClasses(dict[int, str]):
    """For `str.translate`: a-z and ' stay, A other letters, 1 numbers, tab other white space, ! all others."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind = unicodedata.category(char)[0]
        if "a" <= char <= "z" or char in " '":
            shown = char
        elif char in WHITE_SPACE:
            shown = "\t"
        else:
            shown = {"L": "A", "N": "1"}.get(kind, "!")
        self[code] = shown
        return shown


_CLASSES = _CharacterClasses()


@dataclass(frozen=True)
class ByteLevelBPEConfig:
    """The byte-level BPE of an imported run. It cannot be learned from data; `dragoman import` makes it."""

    kind: ClassVar[str] = "byte-level-bpe"
    add_prefix_space: bool = setting(False, help="put a space before every text, so that its first word is like others")


class ByteLevelBPETokenizer(WordCache, VocabularyTokenizer):
    """Pieces of bytes; a space belongs to the word after it. decode(encode(text)) == text."""

    kind = ByteLevelBPEConfig.kind
    config: ByteLevelBPEConfig
    keeps_white_space = True
    suffixes = (*VocabularyTokenizer.suffixes, "merges.txt")

    def __init__(self, config: ByteLevelBPEConfig, tokens: Sequence[str], merges: Merges) -> None:
        super().__init__(config, tokens)
        self.space = None
        self._merges = tuple(merges)
        self._ranks: Mapping[tuple[str, str], int] = {pair: rank for rank, pair in enumerate(self._merges)}

    @classmethod
    def from_files(cls, config: ByteLevelBPEConfig, read: Read) -> ByteLevelBPETokenizer:
        merges = parse_merges(read("merges.txt").decode("utf-8"))
        return cls(config, read_vocabulary(read), merges)

    def encode(self, text: str) -> list[int]:
        """The ids of a text; a byte that the vocabulary lacks becomes <unk>."""
        return [self._ids.get(piece, UNK) for word in self._words(text) for piece in self._cached(word)]

    def spans(self, text: str) -> list[Span]:
        """The characters of every piece, the space before a word included; the last byte of a character covers it."""
        spans, end, missing = list[Span](), -1 if self._prefix(text) else 0, 0  # bytes until a character is complete
        for word in self._words(text):
            for piece in self._cached(word):
                first = end
                for byte in map(BYTE_OF.__getitem__, piece):
                    missing = missing - 1 if missing else (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
                    end += not missing
                spans.append((max(0, first), max(0, end)))
        return spans

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; bytes that are no UTF-8 character become U+FFFD."""
        out = bytearray()
        for index in ids:
            if index == UNK:
                out += UNKNOWN_SURFACE.encode()
            elif index not in UNSEEN:
                token = self._tokens[index]
                known = all(char in BYTE_OF for char in token)
                out += bytes(BYTE_OF[char] for char in token) if known else token.encode()
        text = out.decode("utf-8", "replace")
        return text.removeprefix(" ") if self.config.add_prefix_space else text

    def _prefix(self, text: str) -> str:
        return " " if self.config.add_prefix_space and text and not text.startswith(" ") else ""

    def _words(self, text: str) -> Iterator[str]:
        text = self._prefix(text) + without_surrogates(text)
        for match in _WORD.finditer(text.translate(_CLASSES)):
            yield text[match.start() : match.end()]

    def _encode_word(self, word: str) -> tuple[str, ...]:
        """Merge the pair with the lowest rank, leftmost first, until no pair has one."""
        symbols: list[str] = [BYTES[byte] for byte in word.encode()]
        after = [*range(1, len(symbols)), -1]
        before = [-1, *range(len(symbols) - 1)]
        heap = [(rank, left) for left in range(len(symbols) - 1) if (rank := self._rank(symbols, left, left + 1)) >= 0]
        heapq.heapify(heap)
        while heap:
            rank, left = heapq.heappop(heap)
            right = after[left]
            if not symbols[left] or right < 0 or self._rank(symbols, left, right) != rank:
                continue  # one of the two was merged since
            symbols[left] += symbols[right]
            symbols[right] = ""
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
            for first, second in ((before[left], left), (left, after[left])):
                if first >= 0 and second >= 0 and (new := self._rank(symbols, first, second)) >= 0:
                    heapq.heappush(heap, (new, first))
        return tuple(symbol for symbol in symbols if symbol)

    def _rank(self, symbols: Sequence[str], left: int, right: int) -> int:
        return self._ranks.get((symbols[left], symbols[right]), -1)

    def contents(self) -> list[str | bytes]:
        """Settings, vocabulary, and the merges, the first one first."""
        return [*super().contents(), "".join(f"{left} {right}\n" for left, right in self._merges)]

    def rules(self) -> dict[str, Any]:
        return {"prefix": self.config.add_prefix_space, "merges": self._merges}


def parse_merges(text: str) -> list[tuple[str, str]]:
    """The pairs of a merges.txt; ValueError where a line is no pair."""
    pairs = []
    for number, line in enumerate(text.split("\n"), 1):
        if line and not (number == 1 and line.startswith("#version")):
            left, separator, right = line.partition(" ")
            if not left or not separator or not right or " " in right:
                raise ValueError(f"line {number}: found {line[:40]!r}, expected two pieces with a space between them")
            pairs.append((left, right))
    return pairs
