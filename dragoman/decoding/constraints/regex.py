"""Outputs that match a regular expression: the expression as an automaton over characters, applied to tokens.

Supported: characters, `.`, classes, escapes, groups, `|`, the repeats `* + ? {m,n}`, and the global flags (?i) and
(?s). The whole output must match, so anchors are not needed. Python's `re` decides what a single character matches.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from dragoman.base import ConfigError
from dragoman.decoding.constraints.constraint import AutomatonState, ListedConstraint, few_per_state
from dragoman.decoding.constraints.token_bytes import NO_TEXT, START, TokenBytes

MAX_NODES = 20_000  # of an automaton: x{1,1000} repeats x a thousand times
FLAGS = re.compile(r"\(\?([is]+)\)")
GROUP = re.compile(r"\((?:\?:|\?P<\w+>|(?!\?))")
REPEAT = re.compile(r"([*+?]|\{\d+\}|\{\d*,\d*\})([?+]?)")
CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
ESCAPE = re.compile(
    r"\\(?:[0-3][0-7]{2}|0[0-7]?|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]+\}|[^\dbBAZ])", re.DOTALL
)

Matches = Callable[[str], object]  # whether one character matches
Nodes = frozenset[int]


class Repeat(NamedTuple):
    """An atom that occurs `least` to `most` times; an atom is a test of one character or a group of alternatives."""

    atom: Matches | Group
    least: int
    most: int | None  # None: any number of times


Group = list[list[Repeat]]  # alternatives, each a sequence


class PatternParser:
    """A recursive-descent parser of patterns that `re.compile` accepts, so it must only refuse what is unsupported."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.index = 0
        self.flags = re.RegexFlag(0)

    def parse(self) -> Group:
        try:
            re.compile(self.pattern)
        except RecursionError:
            raise ConfigError(f"pattern: found {len(self.pattern):,} characters nested too deeply") from None
        except (re.error, OverflowError, ValueError) as error:  # the latter two of numbers in braces
            raise ConfigError(f"pattern: found {self.pattern!r}, expected a regular expression ({error})") from error
        if match := self._accept(FLAGS):
            self.flags = (re.I if "i" in match[1] else self.flags) | (re.S if "s" in match[1] else self.flags)
        return self._group()

    def _group(self) -> Group:
        """Alternatives up to the closing bracket or the end."""
        alternatives: Group = [[]]
        while self.index < len(self.pattern) and self.pattern[self.index] != ")":
            if self.pattern[self.index] == "|":
                alternatives.append([])
                self.index += 1
            else:
                alternatives[-1].append(self._repeat())
        return alternatives

    def _repeat(self) -> Repeat:
        atom = self._atom()
        match = self._accept(REPEAT)
        if match is None:
            return Repeat(atom, 1, 1)
        if match[2] == "+":
            raise self._unsupported(match.start())  # a possessive repeat
        if match[1] in ("*", "+", "?"):
            return Repeat(atom, int(match[1] == "+"), 1 if match[1] == "?" else None)
        least, comma, most = match[1][1:-1].partition(",")
        return Repeat(atom, int(least or 0), int(most) if most else None if comma else int(least))

    def _atom(self) -> Matches | Group:
        begin = self.index
        if self._accept(GROUP):
            group = self._group()
            self.index += 1  # the closing bracket
            return group
        character = self.pattern[begin]
        match = self._accept(CLASS) or self._accept(ESCAPE)
        if match is None:
            if character in "(\\^$":
                raise self._unsupported(begin)
            self.index += 1
        text = match[0] if match else "." if character == "." else re.escape(character)
        return re.compile(text, self.flags).fullmatch

    def _accept(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        """Move behind a match, if there is one here."""
        match = expression.match(self.pattern, self.index)
        self.index = match.end() if match else self.index
        return match

    def _unsupported(self, index: int) -> ConfigError:
        return ConfigError(
            f"pattern: found {self.pattern[index : index + 3]!r} in {self.pattern!r}, expected only characters, "
            "classes, groups, | and repeats; the whole output must match, so leave out ^ and $"
        )


class CharacterAutomaton:
    """A nondeterministic automaton (Thompson 1968); transitions between sets of nodes are computed on demand."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.edges: list[list[tuple[Matches | None, int]]] = []  # None: an edge that reads no character
        self._next: dict[tuple[Nodes, str], Nodes] = {}
        first = self._node()
        self.final = self._add_group(first, PatternParser(pattern).parse())
        self.start = self._closure([first])

    def _node(self) -> int:
        if len(self.edges) >= MAX_NODES:
            raise ConfigError(f"pattern: found more than {MAX_NODES:,} positions in {self.pattern!r}, expected fewer")
        self.edges.append([])
        return len(self.edges) - 1

    def _add_group(self, first: int, group: Group) -> int:
        """Add alternatives after a node; the last node."""
        last = self._node()
        for sequence in group:
            node = self._node()
            self.edges[first].append((None, node))
            for repeat in sequence:
                node = self._add_repeat(node, repeat)
            self.edges[node].append((None, last))
        return last

    def _add_repeat(self, node: int, repeat: Repeat) -> int:
        for _ in range(repeat.least):
            node = self._add_atom(node, repeat.atom)
        if repeat.most is None:
            hub = self._node()
            self.edges[node].append((None, hub))
            self.edges[self._add_atom(hub, repeat.atom)].append((None, hub))
            return hub
        last = self._node()
        for _ in range(repeat.most - repeat.least):
            self.edges[node].append((None, last))
            node = self._add_atom(node, repeat.atom)
        self.edges[node].append((None, last))
        return last

    def _add_atom(self, node: int, atom: Matches | Group) -> int:
        if isinstance(atom, list):
            return self._add_group(node, atom)
        last = self._node()
        self.edges[node].append((atom, last))
        return last

    def _closure(self, nodes: Iterable[int]) -> Nodes:
        """The nodes and all that edges without a character lead to."""
        seen = set(nodes)
        stack = list(seen)
        while stack:
            for matches, node in self.edges[stack.pop()]:
                if matches is None and node not in seen:
                    seen.add(node)
                    stack.append(node)
        return frozenset(seen)

    def next_nodes(self, nodes: Nodes, character: str) -> Nodes:
        """The nodes after one more character; empty if it does not match."""
        if (nodes, character) not in self._next:
            after = [
                target
                for node in nodes
                for matches, target in self.edges[node]
                if matches is not None and matches(character)
            ]
            self._next[nodes, character] = self._closure(after)
        return self._next[nodes, character]


class RegexConstraint(ListedConstraint):
    """The whole output matches a regular expression.

    A state is (context of the next token, nodes of the automaton, first bytes of an unfinished character). Tokens may
    spell a character byte by byte up to U+FFFF; beyond that a token must contain the whole character.
    """

    def __init__(self, token_bytes: TokenBytes, pattern: str) -> None:
        super().__init__()
        self.token_bytes = token_bytes
        self.automaton = CharacterAutomaton(pattern)
        self.start = (START, self.automaton.start, b"")
        self._can_finish_cache: dict[tuple[Nodes, bytes], bool] = {}

    def list_tokens(self, state: AutomatonState) -> Mapping[int, AutomatonState]:
        context, nodes, begun = state
        states: dict[int, AutomatonState] = {}
        known: dict[bytes, tuple[Nodes, bytes] | None] = {}
        for token, both in enumerate(self.token_bytes.texts):
            if token in NO_TEXT:
                continue
            text = both[context]
            if text not in known:
                known[text] = self._after(nodes, begun + text)
            after = known[text]
            if after is not None:
                states[token] = (self.token_bytes.next_context[token], *after)
        return states

    def _after(self, nodes: Nodes, text: bytes) -> tuple[Nodes, bytes] | None:
        """The nodes after some bytes, and the bytes of an unfinished character at their end."""
        try:
            characters, size = codecs.utf_8_decode(text, "strict", False)
        except UnicodeDecodeError:
            return None
        for character in characters:
            nodes = self.automaton.next_nodes(nodes, character)
            if not nodes:
                return None
        begun = text[size:]
        return (nodes, begun) if not begun or self._can_finish(nodes, begun) else None

    def _can_finish(self, nodes: Nodes, begun: bytes) -> bool:
        """Whether some character up to U+FFFF begins with these bytes and matches."""
        if (nodes, begun) not in self._can_finish_cache:
            shift = 6 * ((2 if begun[0] < 0xE0 else 3) - len(begun))
            lead = begun[0] & (0x1F if begun[0] < 0xE0 else 0x0F)
            for byte in begun[1:]:
                lead = lead << 6 | byte & 0x3F
            self._can_finish_cache[nodes, begun] = begun[0] < 0xF0 and any(
                chr(code).encode("utf-8", "replace").startswith(begun)
                and bool(self.automaton.next_nodes(nodes, chr(code)))
                for code in range(lead << shift, (lead + 1) << shift)
            )
        return self._can_finish_cache[nodes, begun]

    def may_end(self, state: AutomatonState) -> bool:
        """Whether the expression may end here and no character is unfinished."""
        return self.automaton.final in state[1] and not state[2]

    def tokens_towards_end(self, state: AutomatonState) -> Iterable[int]:
        """A few tokens for every next state; those with whole characters if there are any."""
        states = self.listed(state)
        return few_per_state({token: after for token, after in states.items() if not after[2]} or states)
