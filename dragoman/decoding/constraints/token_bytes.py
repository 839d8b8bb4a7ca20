"""The bytes that each token writes, so that constraints on text hold however a text is split into tokens."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from functools import cached_property

from dragoman.data.tokenizers import EOS, JOINER, PAD, SOS, UNK, Tokenizer

START, INSIDE = 0, 1  # context of a token: no space is due before it (as at the start of the output), or one is
NO_TEXT = (PAD, UNK, SOS, EOS)
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
# Texts before and after a phrase, with which a tokenizer may split the phrase differently.
SURROUNDINGS = (
    ("", ""), ("a ", ""), ("a", ""), ("(", ""), ("", " a"), ("", "a"), ("a ", " a"), ("(", ")"), ('"', '"'),
)  # fmt: skip


class TokenBytes:
    """The bytes of every token of a target vocabulary, and the ways to tokenize a phrase."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.texts: list[tuple[bytes, bytes]] = []  # of each token in the contexts START and INSIDE
        self.next_context: list[int] = []  # the context that each token leaves for the next one
        self._add_tokens()

    def extended(self, tokenizer: Tokenizer) -> TokenBytes:
        """The bytes of a tokenizer with the same tokens and further ones."""
        other = TokenBytes.__new__(TokenBytes)
        other.tokenizer, other.texts, other.next_context = tokenizer, [*self.texts], [*self.next_context]
        other._add_tokens()
        return other

    def _add_tokens(self) -> None:
        tokenizer, first = self.tokenizer, len(self.texts)
        kind = tokenizer.kind
        glued = kind == "words" and getattr(getattr(tokenizer, "config", None), "split", "") == "punctuation"
        for index, piece in enumerate(tokenizer.pieces(range(first, len(tokenizer))), first):
            if index in NO_TEXT:
                self.texts.append((b"", b""))
                self.next_context.append(START)
            elif kind == "characters":
                self._add(piece, piece, START)
            elif kind in ("subwords", "bytes"):
                self._add_subword(piece)
            elif glued:
                text = piece if piece.isspace() else tokenizer.decode([index])
                tight = piece.isspace() or piece.startswith(JOINER)
                self._add(
                    text, text if tight else f" {text}", START if piece.isspace() or piece[-1:] == JOINER else INSIDE
                )
            else:
                self._add(piece, f" {piece}", INSIDE)

    def _add(self, start: str, inside: str, next_context: int) -> None:
        self.texts.append((start.encode("utf-8", "replace"), inside.encode("utf-8", "replace")))
        self.next_context.append(next_context)

    def _add_subword(self, piece: str) -> None:
        if match := BYTE.fullmatch(piece):
            self.texts.append((bytes([int(match[1], 16)]),) * 2)
            self.next_context.append(INSIDE)
            return
        text = piece.replace("\u2581", " ").replace("\U0010fffe", "\u2581")
        self._add(text.removeprefix(" "), text, INSIDE)

    def __len__(self) -> int:
        return len(self.texts)

    def decode(self, tokens: list[int] | tuple[int, ...], context: int = START) -> bytes:
        """The bytes that a row of tokens writes; special tokens write none."""
        parts = []
        for token in tokens:
            if token not in NO_TEXT:
                parts.append(self.texts[token][context])
                context = self.next_context[token]
        return b"".join(parts)

    @cached_property
    def tokens_with_byte(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """For each context the tokens that contain a byte."""
        tables: tuple[dict[int, list[int]], dict[int, list[int]]] = (defaultdict(list), defaultdict(list))
        for token, both in enumerate(self.texts):
            for context, text in enumerate(both):
                for byte in set(text):
                    tables[context][byte].append(token)
        return tables

    @cached_property
    def _sorted(self) -> tuple[list[tuple[bytes, int]], list[tuple[bytes, int]]]:
        rows = [sorted((both[context], token) for token, both in enumerate(self.texts)) for context in (START, INSIDE)]
        return rows[0], rows[1]

    def matching_tokens(self, context: int, rest: bytes) -> dict[int, int]:
        """Tokens that agree with `rest` as far as both reach, each with the number of bytes of `rest` it writes."""
        rows, sizes = self._sorted[context], {}
        for size in range(len(rest) + 1):
            begin = rest[:size]
            index = bisect_left(rows, (begin, -1))
            while index < len(rows) and (
                rows[index][0] == begin or (size == len(rest) and rows[index][0].startswith(rest))
            ):
                text, token = rows[index]
                if token not in NO_TEXT:
                    sizes[token] = min(len(text), len(rest))
                index += 1
        return sizes

    def tokenizations(self, phrase: str) -> list[tuple[int, ...]]:
        """The ways the tokenizer splits a phrase alone, after a word, inside brackets, …; none if it cannot."""
        wanted, rows = phrase.encode("utf-8", "replace"), dict[tuple[int, ...], None]()
        encode = self.tokenizer.encode
        for before, after in SURROUNDINGS:
            head, tail = encode(before), encode(after)
            whole = encode(before + phrase + after)
            if tail and self.tokenizer.kind == "subwords":  # alone, a word begins with a space of its own
                tail = encode("a" + after)[1:] if encode("a" + after)[:1] == encode("a") else tail
            if whole[: len(head)] != head or (tail and whole[-len(tail) :] != tail):
                continue
            row = tuple(whole[len(head) : len(whole) - len(tail)])
            if row and UNK not in row and all(wanted in self.decode(row, context) for context in (START, INSIDE)):
                rows.setdefault(row)
        return list(rows)
