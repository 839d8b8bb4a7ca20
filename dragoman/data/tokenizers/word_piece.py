"""WordPiece tokenizer of BERT: words and punctuation marks, split greedily into pieces (Devlin et al. 2019)."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Annotated, Any, ClassVar

from dragoman.base.config import Range, setting
from dragoman.data.source_reader import Span
from dragoman.data.tokenizers.base import SPECIALS, UNK, NoTextError, VocabularyTokenizer, WordCache

CONTINUATION = "##"  # begins a piece that continues a word
MAX_WORD = 100  # a longer word becomes <unk>, as in BERT
_WORD = re.compile(r"[^\t\n\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
# Spaces that decoding leaves out: before marks that end a clause, and around apostrophes.
_BEFORE_MARK = re.compile(r" (?=[.,!?])| (?=(?:n't|'m|'s|'ve|'re)\b)")
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip

Pair = tuple[int, int]  # neighbouring pieces
Piece = tuple[int, int, int]  # token id, and the characters of the word that it covers


@dataclass(frozen=True)
class WordPieceConfig:
    """Pieces of words; a piece that continues a word begins with ##."""

    kind: ClassVar[str] = "wordpiece"
    lowercase: bool = setting(True, help="lower-case the text")
    strip_accents: bool = setting(True, help="remove accents: é becomes e")
    handle_chinese_chars: bool = setting(True, help="every Chinese character is a word of its own")
    vocab_size: Annotated[int, Range(10)] = setting(
        8_000, help="maximum number of pieces that are learned, the 4 special tokens included"
    )
    min_count: Annotated[int, Range(1)] = setting(2, help="how often two pieces must be neighbours to become one")


class WordPieceTokenizer(WordCache, VocabularyTokenizer):
    """BERT's tokenizer. It normalises its text, so decoding gives the normalised text."""

    kind = WordPieceConfig.kind
    config: WordPieceConfig

    def __init__(self, config: WordPieceConfig, tokens: Sequence[str]) -> None:
        super().__init__(config, tokens)
        self.space = None
        self._longest = max(map(len, self._tokens))

    @classmethod
    def train(cls, config: WordPieceConfig, texts: Iterable[str]) -> WordPieceTokenizer:
        splitter = cls(config, ())
        spaced: Counter[str] = Counter()
        for text in texts:
            spaced.update(_WORD.findall(text))
        words: Counter[str] = Counter()
        for word, count in spaced.items():
            for token, _ in splitter._basic_tokens(word):
                words[token] += count
        if not words:
            raise NoTextError(f"no text to learn {config.kind} from")
        return cls(config, learn_pieces(words, config.vocab_size - len(SPECIALS), config.min_count, CONTINUATION))

    def encode(self, text: str) -> list[int]:
        return [piece[0] for match in _WORD.finditer(text) for piece in self._cached(match.group())]

    def spans(self, text: str) -> list[Span]:
        return [
            (match.start() + first, match.start() + end)
            for match in _WORD.finditer(text)
            for _, first, end in self._cached(match.group())
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """The words with single spaces between them, and none before punctuation marks."""
        words: list[str] = []
        for surface in self.surfaces(ids):
            if surface.startswith(CONTINUATION) and words:
                words[-1] += surface.removeprefix(CONTINUATION)
            else:
                words.append(surface)
        return _BEFORE_MARK.sub("", " ".join(words))

    def rules(self) -> dict[str, Any]:
        return {name: getattr(self.config, name) for name in ("lowercase", "strip_accents", "handle_chinese_chars")}

    def _encode_word(self, word: str) -> tuple[Piece, ...]:
        pieces: list[Piece] = []
        for token, places in self._basic_tokens(word):
            pieces += self._split(token, places)
        return tuple(pieces)

    def _split(self, token: str, places: Sequence[int]) -> list[Piece]:
        """The longest piece first, from left to right; <unk> for the whole token if a rest has no piece."""
        unknown = [(UNK, places[0], places[-1] + 1)]
        if len(token) > MAX_WORD:
            return unknown
        pieces: list[Piece] = []
        start = 0
        while start < len(token):
            prefix = CONTINUATION if start else ""
            for end in range(min(len(token), start + self._longest), start, -1):
                if (index := self._ids.get(prefix + token[start:end])) is not None:
                    pieces.append((index, places[start], places[end - 1] + 1))
                    start = end
                    break
            else:
                return unknown
        return pieces

    def _basic_tokens(self, word: str) -> Iterator[tuple[str, list[int]]]:
        """Normalised words and single punctuation marks, with the index in `word` of each character."""
        token, places = "", list[int]()
        for char, index in self._normalised(word):
            alone = is_punctuation(char) or (self.config.handle_chinese_chars and is_ideograph(char))
            if alone and token:
                yield token, places
                token, places = "", []
            if alone:
                yield char, [index]
            else:
                token += char
                places.append(index)
        if token:
            yield token, places

    def _normalised(self, word: str) -> Iterator[tuple[str, int]]:
        """The characters that remain of a word, with their index in it."""
        for index, char in enumerate(word):
            if char == "\ufffd" or unicodedata.category(char)[0] == "C":
                continue
            parts = unicodedata.normalize("NFD", char) if self.config.strip_accents else char
            for part in parts:
                if not (self.config.strip_accents and unicodedata.category(part) == "Mn"):
                    yield from ((letter, index) for letter in (part.lower() if self.config.lowercase else part))


def is_punctuation(char: str) -> bool:
    """Whether BERT splits a word here: all ASCII symbols, and the punctuation of Unicode."""
    return (char.isascii() and not char.isalnum() and char > " ") or unicodedata.category(char)[0] == "P"


def is_ideograph(char: str) -> bool:
    code = ord(char)
    return code >= 0x3400 and any(first <= code <= last for first, last in _IDEOGRAPHS)


def learn_pieces(words: Mapping[str, int], size: int, min_count: int, prefix: str) -> list[str]:
    """At most `size` pieces of words with their counts: the characters first, then merges in their order.

    Pieces are learned as the tokenizers library does: the most frequent pair of neighbours is merged, until the
    vocabulary is full (Sennrich et al. 2016). Among equally frequent pairs the one of earlier pieces comes first.
    """
    pieces = characters_of(words, size, prefix)
    ids = {piece: index for index, piece in enumerate(pieces)}
    rows: list[list[int]] = []
    counts: list[int] = []
    for word, count in sorted(words.items()):
        row = [ids.get(letter if place == 0 else prefix + letter, -1) for place, letter in enumerate(word)]
        if -1 not in row:  # a rare character has no piece, so the word is unknown
            rows.append(row)
            counts.append(count)
    totals: Counter[Pair] = Counter()
    places: defaultdict[Pair, set[int]] = defaultdict(set)
    for index, row in enumerate(rows):
        for pair in itertools.pairwise(row):
            totals[pair] += counts[index]
            places[pair].add(index)
    queue = [(-total, pair) for pair, total in totals.items()]
    heapify(queue)
    while len(pieces) < size and queue:
        total, pair = heappop(queue)
        if -total != totals[pair]:  # the count has changed since
            if totals[pair] > 0:
                heappush(queue, (-totals[pair], pair))
            continue
        if -total < min_count:
            break
        merged = pieces[pair[0]] + pieces[pair[1]].removeprefix(prefix)
        new = ids.setdefault(merged, len(pieces))
        if new == len(pieces):
            pieces.append(merged)
        for changed in _merge(pair, new, rows, counts, totals, places):
            heappush(queue, (-totals[changed], changed))
    return pieces


def characters_of(words: Mapping[str, int], size: int, prefix: str) -> list[str]:
    """Every letter, and inner letters with the prefix too; the most frequent ones if there are too many."""
    letters: Counter[str] = Counter()
    for word, count in words.items():
        for place, letter in enumerate(word):
            letters[letter] += count
            if place:
                letters[prefix + letter] += count
    kept = sorted(letters, key=lambda piece: (-letters[piece], piece))[:size]
    return sorted(kept, key=lambda piece: (piece.startswith(prefix), piece))


def _merge(
    pair: Pair,
    new: int,
    rows: list[list[int]],
    counts: list[int],
    totals: Counter[Pair],
    places: defaultdict[Pair, set[int]],
) -> set[Pair]:
    """Replace a pair by its merged piece in all words; returns the pairs whose counts have grown."""
    grown: set[Pair] = set()
    for index in places.pop(pair):
        row, count = rows[index], counts[index]
        out: list[int] = []
        at = 0
        for old in itertools.pairwise(row):
            totals[old] -= count
        while at < len(row):
            if at + 1 < len(row) and (row[at], row[at + 1]) == pair:
                out.append(new)
                at += 2
            else:
                out.append(row[at])
                at += 1
        rows[index] = out
        for now in itertools.pairwise(out):
            totals[now] += count
            places[now].add(index)
            if new in now:
                grown.add(now)
    totals[pair] = 0
    return grown
