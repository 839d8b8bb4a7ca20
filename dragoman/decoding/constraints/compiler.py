"""From the constraints of an output to an automaton over tokens, and the registry of those that one text describes.

A user writes `constraints.constrain=NAME=TEXT`, `"constrain": {NAME: TEXT}` in a JSON line, or `constrain={NAME: TEXT}`
in Python. `prefix` and `pattern` are short for the first two. Forbidden, required and allowed texts are lists and have
settings of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dragoman.base import DataError, hint
from dragoman.base.config import Table
from dragoman.data.tokenizers import UNK, Tokenizer
from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.constraints.constraint import Constraint
from dragoman.decoding.constraints.phrases import AllowedOutputs, ForbiddenTexts, PrefixConstraint, RequiredPhrases
from dragoman.decoding.constraints.regex import RegexConstraint
from dragoman.decoding.constraints.spec import NO_CONSTRAINTS, OutputConstraints
from dragoman.decoding.constraints.token_bytes import TokenBytes


@dataclass(frozen=True)
class NamedConstraint:
    """A constraint with the name that users write."""

    name: str
    about: str  # one line for help: what the text means
    build: Callable[[TokenBytes, str], Constraint]  # from the target vocabulary and the text


BUILT_IN = (
    NamedConstraint("prefix", "the output begins with this text", PrefixConstraint),
    NamedConstraint("pattern", "the whole output matches this regular expression", RegexConstraint),
)
CONSTRAINTS = Table("constraint", lambda constraint: [constraint.name], BUILT_IN)


def build_named(name: str, text: str, token_bytes: TokenBytes, location: str) -> Constraint:
    """The constraint of a name; `location` starts error messages."""
    if name not in CONSTRAINTS:
        raise DataError(f"{location}: constrain: found '{name}', no such constraint. {hint(name, CONSTRAINTS)}")
    return CONSTRAINTS[name].build(token_bytes, text)


MAX_CACHED = 1000  # compiled automata
MAX_REMEMBERED = 50_000  # transitions and states of all of them: about 20 MB


class ConstraintCompiler:
    """Compiles constraints for one target vocabulary; equal constraints share one automaton and its caches."""

    def __init__(self, tokenizer: Tokenizer, token_bytes: TokenBytes | None = None) -> None:
        self.tokenizer = tokenizer
        self.token_bytes = token_bytes or TokenBytes(tokenizer)
        self._compiled: dict[OutputConstraints, ConstraintAutomaton | None] = {NO_CONSTRAINTS: None}

    def extended(self, tokenizer: Tokenizer) -> ConstraintCompiler:
        """A compiler for a tokenizer with the same tokens and further ones, such as the words of one source."""
        if tokenizer is self.tokenizer:
            return self
        return ConstraintCompiler(tokenizer, self.token_bytes.extended(tokenizer))

    def compile(
        self, constraints: OutputConstraints, location: str = "input", max_tokens: float = math.inf
    ) -> ConstraintAutomaton | None:
        """The automaton of some constraints; None if there are none. `location` starts error messages.

        An error says so where the output would need more than `max_tokens`, <eos> not counted.
        """
        automaton = self._known(constraints, location)
        if automaton is not None and (needed := automaton.distance(automaton.start)) > max_tokens:
            raise DataError(
                f"{location}: its constraints ({_describe(constraints)}) need {int(needed)} tokens, expected at "
                f"most {int(max_tokens)}, the longest output"
            )
        return automaton

    def _known(self, constraints: OutputConstraints, location: str) -> ConstraintAutomaton | None:
        known = self._compiled  # another thread may replace it
        if constraints in known:
            return known[constraints]
        remembered = sum(automaton.cached for automaton in list(known.values()) if automaton is not None)
        if len(known) > MAX_CACHED or remembered > MAX_REMEMBERED:
            known = self._compiled = {NO_CONSTRAINTS: None}
        automaton = known[constraints] = self._compile(constraints, location)
        return automaton

    def _compile(self, constraints: OutputConstraints, location: str) -> ConstraintAutomaton | None:
        parts: list[Constraint] = []
        if constraints.allow:
            parts.append(self._allowed_outputs(constraints, location))
        named = (("prefix", constraints.prefix), ("pattern", constraints.pattern), *constraints.constrain)
        parts += [build_named(name, text, self.token_bytes, location) for name, text in named if text]
        phrases = [self._tokenizations(alternatives, location) for alternatives in constraints.require]
        if phrases:
            parts.append(RequiredPhrases(phrases))
        if constraints.forbid:
            parts.append(ForbiddenTexts(self.token_bytes, constraints.forbid))
        if not parts:
            return None
        automaton = ConstraintAutomaton(parts, len(self.token_bytes))
        if math.isinf(automaton.distance(automaton.start)):
            raise DataError(f"{location}: no output can satisfy all its constraints: {_describe(constraints)}")
        return automaton

    def _allowed_outputs(self, constraints: OutputConstraints, location: str) -> AllowedOutputs:
        rows = self.tokenizer.encode_batch(constraints.allow)
        spelled = [row for row in rows if UNK not in row]
        if not spelled:
            raise DataError(f"{location}: allow: none of {len(rows)} texts can be spelled with the run's vocabulary")
        return AllowedOutputs(spelled)

    def _tokenizations(self, alternatives: tuple[str, ...], location: str) -> list[tuple[int, ...]]:
        rows = [row for phrase in alternatives for row in self.token_bytes.tokenizations(phrase.strip())]
        if not rows:
            raise DataError(
                f"{location}: require: '{alternatives[0]}' cannot be spelled with the run's vocabulary; its letters or "
                "words were not in the training data"
            )
        return rows


def _describe(constraints: OutputConstraints) -> str:
    parts = [f"{name} {getattr(constraints, name)!r}" for name in ("prefix", "pattern") if getattr(constraints, name)]
    parts += [f"{name} {text!r}" for name in ("forbid", "allow") for text in getattr(constraints, name)]
    parts += [f"{name} {text!r}" for name, text in constraints.constrain]
    parts += [f"require {' or '.join(map(repr, phrases))}" for phrases in constraints.require]
    return ", ".join(parts)[:300]
