"""Phrases that the output must contain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.constraints.aho_corasick import AhoCorasick
from dragoman.decoding.constraints.constraint import AutomatonState, Constraint

MAX_EXACT = 1024  # states up to which the shortest path through all phrases is planned


class RequiredPhrases(Constraint):
    """Every phrase occurs at least a number of times, in one of its tokenizations.

    A state is (node of the Aho-Corasick automaton over tokens, count of each phrase), or () when all are written.
    """

    may_block_end = True

    def __init__(self, phrases: Sequence[Sequence[tuple[int, ...]]], times: Sequence[int] | None = None) -> None:
        """Each phrase is given by its tokenizations, `times` how often each phrase must occur (once by default)."""
        assert all(row and EOS not in row for rows in phrases for row in rows)
        self.phrases = phrases
        self.times = tuple(times or [1] * len(phrases))
        pairs = [(index, row) for index, rows in enumerate(phrases) for row in rows]
        self.phrase_of = [index for index, _ in pairs]
        self.matcher = AhoCorasick([row for _, row in pairs])
        self.tokens = sorted({token for _, row in pairs for token in row})
        self.start: AutomatonState = (0, (0,) * len(phrases)) if any(self.times) else ()
        self.exact = len(self.matcher.children) * math.prod(count + 1 for count in self.times) <= MAX_EXACT
        self._next_states: dict[AutomatonState, dict[int, AutomatonState]] = {(): {}}

    def next_state(self, state: AutomatonState, token: int) -> AutomatonState:
        return self._known_next_states(state).get(token, self.default_state(state))

    def _known_next_states(self, state: AutomatonState) -> Mapping[int, AutomatonState]:
        if state not in self._next_states:
            self._next_states[state] = {token: self._advance(state, token) for token in self.tokens}
        return self._next_states[state]

    def _advance(self, state: AutomatonState, token: int) -> AutomatonState:
        node, counts = state
        node = self.matcher.next_node(node, token)
        ended = {self.phrase_of[index] for index in self.matcher.matches[node]}
        if not ended:
            return node, counts
        counts = tuple(min(count + (index in ended), self.times[index]) for index, count in enumerate(counts))
        if counts == self.times:
            return ()
        # Two occurrences of one phrase may not overlap: start anew if it is needed once more.
        return 0 if any(counts[phrase] < self.times[phrase] for phrase in ended) else node, counts

    def default_state(self, state: AutomatonState) -> AutomatonState:
        return () if state == () else (0, state[1])

    def may_end(self, state: AutomatonState) -> bool:
        return bool(state == ())

    def tokens_towards_end(self, state: AutomatonState) -> Iterable[int]:
        """Tokens that begin or continue a phrase; of very many phrases only the next token of the first missing one."""
        if state == ():
            return ()
        node, counts = state
        if self.exact:
            missing = (rows for index, rows in enumerate(self.phrases) if counts[index] < self.times[index])
            return self.matcher.continuations(node).union(row[0] for rows in missing for row in rows)
        first = next(index for index, count in enumerate(counts) if count < self.times[index])
        return {self._next_token(node, row) for row in self.phrases[first]}

    def _next_token(self, node: int, row: tuple[int, ...]) -> int:
        """The token of a row after the longest prefix of it that the output ends in."""
        prefixes = [0]
        for token in row[:-1]:
            prefixes.append(self.matcher.children[prefixes[-1]][token])
        while node not in prefixes:
            node = self.matcher.fallback[node]
        return row[prefixes.index(node)]
