"""Outputs of a regular grammar: a regular expression as a deterministic automaton over bytes, lifted to tokens.

Read with Python's own parser; of its language: literals, ., classes, groups, |, and the repeats * + ? {m,n}. States are
sets of positions and are made as they are reached (Brzozowski's derivatives would do the same).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from dragoman.decoding.constraints.automata import Standing, few_of_each
from dragoman.decoding.constraints.token_bytes import NO_TEXT, START, Surfaces
from dragoman.errors import ConfigError

MOST = 20_000  # positions an expression may have: {1,1000} writes its part a thousand times


class Grammar:
    """The whole output matches a regular expression."""

    steers = True

    def __init__(self, surfaces: Surfaces, pattern: str) -> None:
        self.surfaces = surfaces
        self.pattern = pattern
        self.arrows: list[list[tuple[Any, int]]] = []  # (test of a character or None for nothing, where to)
        try:
            first, self.last = self._part(parser.parse(pattern))
        except re.error as error:
            raise ConfigError(f"pattern: found {pattern!r}, expected a regular expression ({error})") from error
        self.start: Standing = (START, self._reached([first]), b"")
        self._moves: dict[Standing, dict[int, Standing]] = {}
        self._begun: dict[tuple[frozenset[int], bytes], bool] = {}
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    # --- from an expression to arrows between positions (Thompson 1968)

    def _node(self) -> int:
        if len(self.arrows) >= MOST:
            raise ConfigError(f"pattern: found more than {MOST:,} positions in {self.pattern!r}, expected fewer")
        self.arrows.append([])
        return len(self.arrows) - 1

    def _part(self, parts: Any) -> tuple[int, int]:
        first = here = self._node()
        for kind, value in parts:
            here = self._item(here, kind, value)
        return first, here

    def _item(self, here: int, kind: Any, value: Any) -> int:
        if kind in (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN):
            there = self._node()
            self.arrows[here].append((_test(kind, value), there))
            return there
        if kind is codes.SUBPATTERN and not value[1] and not value[2]:
            first, last = self._part(value[3])
            self.arrows[here].append((None, first))
            return last
        if kind is codes.BRANCH:
            there = self._node()
            for branch in value[1]:
                first, last = self._part(branch)
                self.arrows[here].append((None, first))
                self.arrows[last].append((None, there))
            return there
        if kind in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            least, most, parts = value
            for _ in range(least):
                here = self._linked(here, parts)
            if most is codes.MAXREPEAT:
                hub = self._node()
                self.arrows[here].append((None, hub))
                self.arrows[self._linked(hub, parts)].append((None, hub))
                return hub
            end = self._node()
            for _ in range(most - least):
                self.arrows[here].append((None, end))
                here = self._linked(here, parts)
            self.arrows[here].append((None, end))
            return end
        raise ConfigError(
            f"pattern: found {str(kind).lower()} in {self.pattern!r}, expected only characters, classes, groups, "
            "| and repeats; the whole output must match, so that ^ and $ are not needed"
        )

    def _linked(self, here: int, parts: Any) -> int:
        first, last = self._part(parts)
        self.arrows[here].append((None, first))
        return last

    def _reached(self, nodes: Iterable[int]) -> frozenset[int]:
        seen, waiting = set(nodes), list(nodes)
        while waiting:
            for test, there in self.arrows[waiting.pop()]:
                if test is None and there not in seen:
                    seen.add(there)
                    waiting.append(there)
        return frozenset(seen)

    def step(self, nodes: frozenset[int], character: str) -> frozenset[int]:
        """The positions after one more character; none if it does not fit."""
        if (nodes, character) not in self._steps:
            there = [to for node in nodes for test, to in self.arrows[node] if test is not None and test(character)]
            self._steps[nodes, character] = self._reached(there)
        return self._steps[nodes, character]

    # --- over tokens

    def moves(self, state: Standing) -> Mapping[int, Standing]:
        """Tokens that fit; a character may be spelled in several bytes up to U+FFFF, beyond it only by a piece."""
        if state not in self._moves:
            place, nodes, begun = state
            found: dict[int, Standing] = {}
            known: dict[bytes, tuple[frozenset[int], bytes] | None] = {}
            for token, both in enumerate(self.surfaces.written):
                if token in NO_TEXT:
                    continue
                text = both[place]
                if text not in known:
                    known[text] = self._after(nodes, begun + text)
                result = known[text]
                if result is not None:
                    found[token] = (self.surfaces.after[token], *result)
            self._moves[state] = found
        return self._moves[state]

    def _after(self, nodes: frozenset[int], text: bytes) -> tuple[frozenset[int], bytes] | None:
        whole, begun = text, b""
        for size in range(1, 4):  # the end may be the beginning of a character
            if len(text) >= size and text[-size] >= 0xC0:
                length = 2 if text[-size] < 0xE0 else 3 if text[-size] < 0xF0 else 4
                if length > size:
                    whole, begun = text[:-size], text[-size:]
                break
        try:
            characters = whole.decode("utf-8")
        except UnicodeDecodeError:
            return None
        for character in characters:
            nodes = self.step(nodes, character)
            if not nodes:
                return None
        return (nodes, begun) if not begun or self._may_begin(nodes, begun) else None

    def _may_begin(self, nodes: frozenset[int], begun: bytes) -> bool:
        """Whether some character up to U+FFFF begins with these bytes and fits."""
        if (nodes, begun) not in self._begun:
            shifts = 6 * ((2 if begun[0] < 0xE0 else 3) - len(begun))
            lead = begun[0] & (0x1F if begun[0] < 0xE0 else 0x0F)
            for byte in begun[1:]:
                lead = lead << 6 | byte & 0x3F
            codes_of = range(lead << shifts, (lead + 1) << shifts)
            self._begun[nodes, begun] = begun[0] < 0xF0 and any(
                chr(code).encode("utf-8", "replace").startswith(begun) and bool(self.step(nodes, chr(code)))
                for code in codes_of
            )
        return self._begun[nodes, begun]

    def after(self, state: Standing, token: int) -> Standing:
        """The positions after a token that fits."""
        return self.moves(state).get(token)

    def only(self, state: Standing) -> Collection[int] | None:
        """Tokens that fit."""
        return self.moves(state)

    def never(self, state: Standing) -> Collection[int]:
        """Nothing more."""
        return ()

    def otherwise(self, state: Standing) -> Standing:
        """Nothing else."""
        return None

    def may_end(self, state: Standing) -> bool:
        """Where the expression ends and no character is half written."""
        return self.last in state[1] and not state[2]

    def wanted(self, state: Standing) -> Iterable[int]:
        """Some tokens for every place that can be reached, with whole characters if there are such."""
        moves = self.moves(state)
        return few_of_each({token: there for token, there in moves.items() if not there[2]} or moves)


def _test(kind: Any, value: Any) -> Any:
    """A test of one character: Python's own, so that classes mean what they mean everywhere."""
    if kind is codes.LITERAL:
        return chr(value).__eq__
    if kind is codes.NOT_LITERAL:
        return chr(value).__ne__
    if kind is codes.ANY:
        return "\n".__ne__
    negated = value[0][0] is codes.NEGATE
    tests = [_member(*item) for item in value[negated:]]
    return lambda character: any(test(character) for test in tests) != negated


def _member(kind: Any, value: Any) -> Any:
    if kind is codes.LITERAL:
        return chr(value).__eq__
    if kind is codes.RANGE:
        return lambda character: value[0] <= ord(character) <= value[1]
    assert kind is codes.CATEGORY
    classes = {"digit": r"\d", "space": r"\s", "word": r"\w"}
    name = str(value).lower().removeprefix("category_")
    chosen = re.compile(classes[name.removeprefix("not_")])
    return lambda character: (chosen.match(character) is None) == name.startswith("not_")
