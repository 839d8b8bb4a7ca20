"""A constraint written as one class, as docs/how-to/extending/constraint.md shows it, inside the search."""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.constraints.constraint import AutomatonState, Constraint
from tests.decoding.constraints.test_automata import SIZE, everything, found_by, same, slow
from tests.decoding.test_beam import Table

OPENING, CLOSING = 4, 5


class BalancedBrackets(Constraint):
    """Every opening bracket is closed; the state is the number of open brackets."""

    may_block_end = True
    start = 0

    def __init__(self, opening: int, closing: int) -> None:
        self.change = {opening: +1, closing: -1}
        self.closing = closing

    def next_state(self, state: AutomatonState, token: int) -> AutomatonState:
        """None where a bracket would be closed that was not opened."""
        depth = state + self.change.get(token, 0)
        return depth if depth >= 0 else None

    def default_state(self, state: AutomatonState) -> AutomatonState:
        """Other tokens change nothing."""
        return state

    def may_end(self, state: AutomatonState) -> bool:
        """When all brackets are closed."""
        return bool(state == 0)

    def tokens_towards_end(self, state: AutomatonState) -> Iterable[int]:
        """The closing bracket."""
        return [self.closing] if state else []


def balanced(tokens: tuple[int, ...]) -> bool:
    depth = 0
    for token in tokens:
        depth += (token == OPENING) - (token == CLOSING)
        if depth < 0:
            return False
    return depth == 0


def test_a_custom_constraint_holds_in_every_output() -> None:
    automaton = ConstraintAutomaton([BalancedBrackets(OPENING, CLOSING)], SIZE)
    for seed in range(20):
        table, limit, width = Table(seed, SIZE, 1.0, -1.0, 0.0), 2 + seed % 4, 1 + seed % 3
        found = found_by(table, [0], [limit], width, [automaton])
        same(found[0], slow(table.of(0), limit, width, everything(limit, balanced))[:width])
        assert all(balanced(hypothesis.tokens) for hypothesis in found[0])
