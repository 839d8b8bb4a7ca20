"""The interface of a constraint: a finite automaton over tokens.

A new constraint is one class. This one keeps brackets balanced; the depth of open brackets is its state:

    class BalancedBrackets(Constraint):
        may_block_end = True
        start = 0

        def __init__(self, opening: int, closing: int) -> None:
            self.change = {opening: +1, closing: -1}
            self.closing = closing

        def next_state(self, state, token):
            depth = state + self.change.get(token, 0)
            return depth if depth >= 0 else None

        def default_state(self, state):
            return state

        def may_end(self, state):
            return state == 0

        def tokens_towards_end(self, state):
            return [self.closing] if state else []
"""

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


def few_per_state(next_states: Mapping[int, AutomatonState]) -> list[int]:
    """At most TOKENS_PER_STATE tokens for every state that they lead to."""
    tokens_to: dict[Hashable, list[int]] = defaultdict(list)
    for token, state in next_states.items():
        if state is not None and len(tokens_to[state]) < TOKENS_PER_STATE:
            tokens_to[state].append(token)
    return [token for tokens in tokens_to.values() for token in tokens]
