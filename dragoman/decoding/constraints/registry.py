"""The registry of constraints that one text describes.

A user writes `constraints.constrain=NAME=TEXT`, `"constrain": {NAME: TEXT}` in a JSON line, or `constrain={NAME: TEXT}`
in Python. `prefix` and `pattern` are short for the first two. Forbidden, required and allowed texts are lists and have
settings of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dragoman.base import DataError, hint
from dragoman.base.config import Table
from dragoman.decoding.constraints.constraint import Constraint
from dragoman.decoding.constraints.phrases import PrefixConstraint
from dragoman.decoding.constraints.regex import RegexConstraint
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
