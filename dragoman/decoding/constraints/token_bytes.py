"""What each token writes, in bytes, so that rules over text hold however a text is cut into tokens."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from functools import cached_property

from dragoman.data.tokenizers.tokenizer import EOS, JOINER, PAD, SOS, UNK, Tokenizer

START, INSIDE = 0, 1  # where a token stands: after nothing that wants a space, or after something that does
NO_TEXT = (PAD, UNK, SOS, EOS)
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
AROUND = (("", ""), ("a ", ""), ("a", ""), ("(", ""), ("", " a"), ("", "a"), ("a ", " a"), ("(", ")"), ('"', '"'))


class Surfaces:
    """The bytes of every token of a target vocabulary, and the ways to cut a phrase into tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        pieces = tokenizer.pieces(range(len(tokenizer)))
        kind = tokenizer.kind
        glued = kind == "words" and getattr(getattr(tokenizer, "config", None), "split", "") == "punctuation"
        self.written: list[tuple[bytes, bytes]] = []  # at the start, inside
        self.after: list[int] = []  # where the next token stands
        for index, piece in enumerate(pieces):
            if index in NO_TEXT:
                self.written.append((b"", b""))
                self.after.append(START)
            elif kind == "characters":
                self._add(piece, piece, START)
            elif kind == "subwords":
                self._add_subword(piece)
            elif glued:
                text = piece if piece.isspace() else tokenizer.decode([index])
                tight = piece.isspace() or piece.startswith(JOINER)
                self._add(text, text if tight else f" {text}", START if piece.isspace() or piece[-1:] == JOINER else 1)
            else:
                self._add(piece, f" {piece}", INSIDE)

    def _add(self, start: str, inside: str, after: int) -> None:
        self.written.append((start.encode("utf-8", "replace"), inside.encode("utf-8", "replace")))
        self.after.append(after)

    def _add_subword(self, piece: str) -> None:
        if found := BYTE.fullmatch(piece):
            self.written.append((bytes([int(found[1], 16)]),) * 2)
            self.after.append(INSIDE)
            return
        text = piece.replace("\u2581", " ").replace("\U0010fffe", "\u2581")
        self._add(text.removeprefix(" "), text, INSIDE)

    def __len__(self) -> int:
        return len(self.written)

    def text(self, tokens: list[int] | tuple[int, ...]) -> bytes:
        """What a row of tokens writes."""
        place, parts = START, []
        for token in tokens:
            if token not in NO_TEXT:
                parts.append(self.written[token][place])
                place = self.after[token]
        return b"".join(parts)

    @cached_property
    def holding(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """For each place the tokens that hold a byte."""
        found: tuple[dict[int, list[int]], dict[int, list[int]]] = (defaultdict(list), defaultdict(list))
        for token, both in enumerate(self.written):
            for place, text in enumerate(both):
                for byte in set(text):
                    found[place][byte].append(token)
        return found

    @cached_property
    def beginning(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """For each place the tokens that begin with a byte."""
        found: tuple[dict[int, list[int]], dict[int, list[int]]] = (defaultdict(list), defaultdict(list))
        for token, both in enumerate(self.written):
            for place, text in enumerate(both):
                if text:
                    found[place][text[0]].append(token)
        return found

    @cached_property
    def _sorted(self) -> tuple[list[tuple[bytes, int]], list[tuple[bytes, int]]]:
        rows = [sorted((both[place], token) for token, both in enumerate(self.written)) for place in (START, INSIDE)]
        return rows[0], rows[1]

    def fitting(self, place: int, rest: bytes) -> dict[int, int]:
        """Tokens that agree with `rest` as far as both reach, each with how many of its bytes it writes."""
        rows, found = self._sorted[place], {}
        for size in range(len(rest) + 1):
            begin = rest[:size]
            at = bisect_left(rows, (begin, -1))
            while at < len(rows) and (rows[at][0] == begin or (size == len(rest) and rows[at][0].startswith(rest))):
                if rows[at][1] not in NO_TEXT:
                    found[rows[at][1]] = min(len(rows[at][0]), len(rest))
                at += 1
        return found

    def cuts(self, phrase: str) -> list[tuple[int, ...]]:
        """The ways the tokenizer itself cuts a phrase: alone, after a word, inside brackets, …; none if it cannot."""
        wanted, found = phrase.encode("utf-8", "replace"), dict[tuple[int, ...], None]()
        encode = self.tokenizer.encode
        for before, behind in AROUND:
            head, tail = encode(before), encode(behind)
            whole = encode(before + phrase + behind)
            if tail and self.tokenizer.kind == "subwords":  # alone, a word begins with a space of its own
                tail = encode("a" + behind)[1:] if encode("a" + behind)[:1] == encode("a") else tail
            if whole[: len(head)] != head or (tail and whole[-len(tail) :] != tail):
                continue
            cut = tuple(whole[len(head) : len(whole) - len(tail)])
            if cut and UNK not in cut and all(wanted in self._from(place, cut) for place in (START, INSIDE)):
                found.setdefault(cut)
        return list(found)

    def _from(self, place: int, tokens: tuple[int, ...]) -> bytes:
        parts = []
        for token in tokens:
            parts.append(self.written[token][place])
            place = self.after[token]
        return b"".join(parts)
