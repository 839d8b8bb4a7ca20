"""Constraints that fix the beginning of the output, or all of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from dragoman.decoding.constraints.constraint import AutomatonState, Constraint, few_per_state
from dragoman.decoding.constraints.token_bytes import START, TokenBytes


class PrefixConstraint(Constraint):
    """The output begins with a text; the last token of the prefix may extend beyond it.

    A state is (context of the next token, bytes of the prefix written so far), or () when the prefix is written.
    """

    may_block_end = True

    def __init__(self, token_bytes: TokenBytes, text: str) -> None:
        self.token_bytes = token_bytes
        self.prefix = text.encode("utf-8", "replace")
        self.start: AutomatonState = (START, 0) if self.prefix else ()
        self._next_states: dict[AutomatonState, dict[int, AutomatonState]] = {(): {}}

    def _matching(self, state: AutomatonState) -> Mapping[int, AutomatonState]:
        """Tokens that agree with the rest of the prefix, and the state after each."""
        if state not in self._next_states:
            context, written = state
            tokens = self.token_bytes.matching_tokens(context, self.prefix[written:])
            self._next_states[state] = {
                token: (self.token_bytes.next_context[token], written + size)
                if written + size < len(self.prefix)
                else ()
                for token, size in tokens.items()
            }
        return self._next_states[state]

    def next_state(self, state: AutomatonState, token: int) -> AutomatonState:
        return () if state == () else self._matching(state).get(token)

    def default_state(self, state: AutomatonState) -> AutomatonState:
        return () if state == () else None

    def allowed_tokens(self, state: AutomatonState) -> Collection[int] | None:
        return None if state == () else self._matching(state)

    def may_end(self, state: AutomatonState) -> bool:
        return bool(state == ())

    def tokens_towards_end(self, state: AutomatonState) -> Iterable[int]:
        return few_per_state(self._matching(state))


class AllowedOutputs(Constraint):
    """The output is one of several token rows; a state is a node of their trie."""

    may_block_end = True

    def __init__(self, rows: Iterable[Sequence[int]]) -> None:
        self.start = 0
        self.children: list[dict[int, int]] = [{}]
        self.ends = set[int]()
        for row in rows:
            node = 0
            for token in row:
                if token not in self.children[node]:
                    self.children[node][token] = len(self.children)
                    self.children.append({})
                node = self.children[node][token]
            self.ends.add(node)

    def next_state(self, state: AutomatonState, token: int) -> AutomatonState:
        return self.children[state].get(token)

    def default_state(self, state: AutomatonState) -> AutomatonState:
        return None

    def allowed_tokens(self, state: AutomatonState) -> Collection[int] | None:
        return self.children[state]

    def may_end(self, state: AutomatonState) -> bool:
        return state in self.ends

    def tokens_towards_end(self, state: AutomatonState) -> Iterable[int]:
        return self.children[state]
