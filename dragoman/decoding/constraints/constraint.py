"""The interface of a constraint: a finite automaton over tokens. docs/how-to/extending/constraint.md writes one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any

AutomatonState = Any  # hashable; None is no state: the token that led here is not allowed
TOKENS_PER_STATE = 8  # tokens tried of those that lead to the same state


class Constraint(ABC):
    """A finite automaton over tokens; it never sees probabilities, so constraints change no hypothesis's score."""

    start: AutomatonState
    may_block_end = False  # True: some states do not allow <eos>, and `tokens_towards_end` leads out of them

    @abstractmethod
    def next_state(self, state: AutomatonState, token: int) -> AutomatonState:
        """The state after a token; None if the token is not allowed."""

    @abstractmethod
    def default_state(self, state: AutomatonState) -> AutomatonState:
        """The state after a token that means nothing to this constraint; None only if `allowed_tokens` is a list."""

    def allowed_tokens(self, state: AutomatonState) -> Collection[int] | None:
        """The only allowed tokens, where these are few; None: no such list."""
        return None

    def forbidden_tokens(self, state: AutomatonState) -> Collection[int]:
        """Tokens that are not allowed, as far as a list is cheap to have; `next_state` decides about the others."""
        return ()

    def may_end(self, state: AutomatonState) -> bool:
        return True

    def tokens_towards_end(self, state: AutomatonState) -> Iterable[int]:
        """Tokens that bring the output nearer to a state where it may end."""
        return ()


class ListedConstraint(Constraint):
    """A constraint that lists the allowed tokens of every state, until it has no more to say in the state ()."""

    may_block_end = True

    def __init__(self) -> None:
        self._listed: dict[AutomatonState, Mapping[int, AutomatonState]] = {(): {}}

    @abstractmethod
    def list_tokens(self, state: AutomatonState) -> Mapping[int, AutomatonState]:
        """The allowed tokens, and the state after each."""

    def listed(self, state: AutomatonState) -> Mapping[int, AutomatonState]:
        if state not in self._listed:
            self._listed[state] = self.list_tokens(state)
        return self._listed[state]

    def next_state(self, state: AutomatonState, token: int) -> AutomatonState:
        return () if state == () else self.listed(state).get(token)

    def default_state(self, state: AutomatonState) -> AutomatonState:
        return () if state == () else None

    def allowed_tokens(self, state: AutomatonState) -> Collection[int] | None:
        return None if state == () else self.listed(state)

    def may_end(self, state: AutomatonState) -> bool:
        return bool(state == ())

    def tokens_towards_end(self, state: AutomatonState) -> Iterable[int]:
        return few_per_state(self.listed(state))


def few_per_state(next_states: Mapping[int, AutomatonState]) -> list[int]:
    """At most TOKENS_PER_STATE tokens for every state that they lead to."""
    tokens_to: dict[Hashable, list[int]] = defaultdict(list)
    for token, state in next_states.items():
        if state is not None and len(tokens_to[state]) < TOKENS_PER_STATE:
            tokens_to[state].append(token)
    return [token for tokens in tokens_to.values() for token in tokens]
