"""Several constraints as one automaton, with the distance from each state to a possible end.

A search that keeps only hypotheses whose distance is within their remaining length finds an output whenever there is
one.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Sequence

from dragoman.base import check_interrupted
from dragoman.data.tokenizers import EOS
from dragoman.decoding.constraints.constraint import AutomatonState, Constraint
from dragoman.decoding.constraints.phrases import RequiredPhrases
from dragoman.decoding.constraints.token_bytes import NO_TEXT

MAX_CACHED = 200_000  # transitions, so that a stream of inputs under one automaton needs bounded memory


UNKNOWN = object()  # not in a cache; None is a state


class ConstraintAutomaton:
    """The product of several constraints, for one source; sources with equal constraints may share the object.

    `distance` is the length of a real path to the end. It is the shortest path, with two exceptions: a forbidden text
    may bar all TOKENS_PER_STATE tokens that were tried for a state, and very many required phrases are planned one
    after another. Then the distance may be too long.
    """

    def __init__(self, constraints: Sequence[Constraint], vocabulary: int) -> None:
        self.constraints = tuple(constraints)
        self.vocabulary = vocabulary
        self.start: AutomatonState = tuple(constraint.start for constraint in constraints)
        self.requires_phrases = any(
            isinstance(constraint, RequiredPhrases) and constraint.start != () for constraint in constraints
        )
        self._blocking = [
            (index, constraint) for index, constraint in enumerate(constraints) if constraint.may_block_end
        ]
        self._next_states: dict[tuple[AutomatonState, int], AutomatonState] = {}
        self._distances: dict[AutomatonState, float] = {}
        self._token_lists: dict[AutomatonState, tuple[list[int] | None, list[int]]] = {}

    @property
    def cached(self) -> int:
        return len(self._next_states) + len(self._distances) + len(self._token_lists)

    def next_state(self, state: AutomatonState, token: int) -> AutomatonState:
        """The state after a token; None if any constraint does not allow it."""
        key = (state, token)
        after = self._next_states.get(key, UNKNOWN)
        if after is UNKNOWN:  # another thread may clear the cache at any time
            if len(self._next_states) > MAX_CACHED:
                self._next_states.clear()
            parts = zip(self.constraints, state, strict=True)
            states = tuple(constraint.next_state(part, token) for constraint, part in parts)
            after = self._next_states[key] = None if None in states else states
        return after

    def default_state(self, state: AutomatonState) -> AutomatonState:
        """The state after a token that means nothing to any constraint; parts are None where there is no such token."""
        return tuple(constraint.default_state(part) for constraint, part in zip(self.constraints, state, strict=True))

    def may_end(self, state: AutomatonState) -> bool:
        return all(constraint.may_end(part) for constraint, part in zip(self.constraints, state, strict=True))

    def token_lists(self, state: AutomatonState) -> tuple[list[int] | None, list[int]]:
        """The only allowed tokens (None: no such list) and the forbidden ones, as far as lists are cheap to have."""
        if state not in self._token_lists:
            allowed: set[int] | None = None
            forbidden = set[int]()
            for constraint, part in zip(self.constraints, state, strict=True):
                forbidden.update(constraint.forbidden_tokens(part))
                if (own := constraint.allowed_tokens(part)) is not None:
                    allowed = set(own) if allowed is None else allowed & set(own)
            if self.may_end(state):
                allowed = allowed if allowed is None else allowed | {EOS}
            else:
                forbidden.add(EOS)
            listed = None if allowed is None else sorted(allowed - forbidden)
            self._token_lists[state] = (listed, sorted(forbidden))
        return self._token_lists[state]

    def tokens_towards_end(self, state: AutomatonState) -> list[int]:
        """Allowed tokens that bring the output nearer to its end."""
        tokens = dict.fromkeys(
            token for index, constraint in self._blocking for token in constraint.tokens_towards_end(state[index])
        )
        return [token for token in tokens if token not in NO_TEXT and self.next_state(state, token) is not None]

    def _successors(self, state: AutomatonState) -> set[AutomatonState]:
        """States one token away: after the tokens towards the end and after one that means nothing to any constraint.

        If every token means something, the states after all tokens.
        """
        tokens = self.tokens_towards_end(state)
        default = self.default_state(state)
        writable = range(len(NO_TEXT), self.vocabulary)
        if None not in default:
            if any(self.next_state(state, token) == default for token in writable):
                return {self.next_state(state, token) for token in tokens} - {None} | {default}
            tokens = list(writable)
        return {self.next_state(state, token) for token in tokens} - {None}

    def distance(self, state: AutomatonState) -> float:
        """The number of tokens to a state where the output may end; ∞ if there is none."""
        if state not in self._distances:
            self._compute_distances(state)
        return self._distances[state]

    def _compute_distances(self, state: AutomatonState) -> None:
        """Explore all states after this one, then run Dijkstra's algorithm backwards from those with a distance."""
        predecessors: dict[AutomatonState, list[AutomatonState]] = defaultdict(list)
        best: dict[AutomatonState, float] = {}
        seen, queue = {state}, deque([state])
        while queue:
            check_interrupted()
            here = queue.popleft()
            if here in self._distances:
                best[here] = self._distances[here]
                continue
            if self.may_end(here):
                best[here] = 0
                continue
            for there in self._successors(here):
                predecessors[there].append(here)
                if there not in seen:
                    seen.add(there)
                    queue.append(there)
        heap = [(distance, number, here) for number, (here, distance) in enumerate(best.items())]
        heapq.heapify(heap)
        count = len(heap)
        while heap:
            distance, _, here = heapq.heappop(heap)
            if distance > best[here]:
                continue
            for there in predecessors[here]:
                if there not in self._distances and distance + 1 < best.get(there, math.inf):
                    best[there] = distance + 1
                    count += 1
                    heapq.heappush(heap, (distance + 1, count, there))
        for here in seen:
            self._distances[here] = best.get(here, math.inf)
