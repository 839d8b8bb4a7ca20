"""Constraints on outputs as a user writes them: as text, in Python values or in JSON.

`compiler.ConstraintCompiler` turns them into automata over tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from dragoman.base import ConfigError, DataError

FIELDS = ("prefix", "forbid", "require", "allow", "pattern", "constrain")


@dataclass(frozen=True)
class OutputConstraints:
    """The constraints on one output.

    Forbidden texts are found inside words too, however the tokenizer splits them: "cat" also forbids "category".
    Write the spaces to forbid a whole word: " cat " forbids neither "category" nor "cat" at either end of the output.
    """

    prefix: str = ""
    forbid: tuple[str, ...] = ()
    require: tuple[tuple[str, ...], ...] = ()  # each entry lists alternatives, of which one is enough
    allow: tuple[str, ...] = ()  # the whole output is one of these
    pattern: str = ""  # the whole output matches this regular expression
    constrain: tuple[tuple[str, str], ...] = ()  # registered constraints: name and text

    def __bool__(self) -> bool:
        return self != NO_CONSTRAINTS


NO_CONSTRAINTS = OutputConstraints()


class ConstrainedInput(NamedTuple):
    """An input text and the constraints on its output, or the output that is given for it."""

    text: str
    constraints: OutputConstraints = NO_CONSTRAINTS
    place: str = ""  # "path:line" for messages; without it an input is named by its number
    target: str | None = None  # for work that scores or aligns a given output

    def with_defaults(self, shared: OutputConstraints) -> ConstrainedInput:
        """The input with the constraints of `shared` of which it has none of its own."""
        if not self.constraints:
            return self._replace(constraints=shared)
        fields = {name: getattr(self.constraints, name) or getattr(shared, name) for name in FIELDS}
        return self._replace(constraints=OutputConstraints(**fields))


def parse_constraints(table: dict[str, Any], location: str) -> OutputConstraints:
    """Constraints from plain values: a text or a list of texts for each field; `location` starts error messages."""
    fields: dict[str, Any] = {}
    for name in ("prefix", "pattern"):
        value = table.get(name)
        if value is not None and not isinstance(value, str):
            raise DataError(f"{location}: {name}: found {value!r}, expected a text")
        fields[name] = value or ""
    for name in ("forbid", "require", "allow"):
        value = table.get(name)
        values = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(values, list | tuple) or not all(_is_phrase(phrase, name) for phrase in values):
            raise DataError(
                f"{location}: {name}: found {value!r}, expected a text or a list of texts, none of them empty"
            )
        fields[name] = tuple(values)
    named = table.get("constrain")
    if named is None:
        named = {}
    if not isinstance(named, dict) or not all(isinstance(entry, str) for pair in named.items() for entry in pair):
        raise DataError(f"{location}: constrain: found {named!r}, expected a table of names and texts")
    alternatives = ((phrase,) if isinstance(phrase, str) else tuple(phrase) for phrase in fields["require"])
    return OutputConstraints(**(fields | {"require": tuple(alternatives), "constrain": tuple(named.items())}))


def _is_phrase(value: object, name: str) -> bool:
    """Only `require` takes lists of alternatives; only `allow` takes an empty text."""
    if isinstance(value, str):
        return bool(value.strip()) or name == "allow" or (name == "forbid" and value != "")
    return (
        name == "require"
        and isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(phrase, str) and phrase.strip() for phrase in value)
    )


def constraints_for_inputs(count: int, **values: Any) -> list[OutputConstraints]:
    """Constraints for `count` inputs, from one value for all inputs or from a list with one entry per input.

    For `forbid`, `require` and `allow`, a list of texts holds for all inputs; a list of lists has one list per input.
    For `constrain`, a table holds for all inputs; a list has one table per input.
    """
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    shared = True
    for name, value in values.items():
        per_input = isinstance(value, list | tuple) and (
            name in ("prefix", "pattern", "constrain")
            or (isinstance(value, list) and any(entry is None or isinstance(entry, list) for entry in value))
        )
        if per_input and len(value) != count:
            raise ConfigError(f"{name}: found {len(value)} entries, expected one for each of the {count} inputs")
        shared = shared and not per_input
        for index, row in enumerate(rows):
            row[name] = value[index] if per_input else value
    if shared and rows:  # a long list of allowed outputs is checked once, not once per input
        return [parse_constraints(rows[0], "input 1")] * count
    return [parse_constraints(row, f"input {number}") for number, row in enumerate(rows, 1)]
