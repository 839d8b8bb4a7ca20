"""The options of a command, made from the record of options that its verb takes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import MISSING, Field
from typing import Any

import click

from dragoman.base import ConfigError
from dragoman.base.config import Accepted, Range, accepted, fields_of, type_hints
from dragoman.commands.options import ListingOption

Command = Callable[..., Any]


def options_of(record: Any, name: str = "options") -> Callable[[Command], Command]:
    """Adds an option for every field of a record that has a flag; the command gets an instance of it as `name`.

    Fields without a flag keep their defaults. A message of the record begins with the name of a field; the user reads
    the flag in its place.
    """
    fields = {key: field for key, field in fields_of(record).items() if "flag" in field.metadata}

    def add(function: Command) -> Command:
        @functools.wraps(function)
        def filled(**given: Any) -> Any:
            try:
                values = record(**{key: given.pop(key) for key in fields})
                for problem in getattr(values, "problems", list)():
                    raise ConfigError(problem)
            except ConfigError as error:
                key, colon, rest = str(error).partition(":")
                raise ConfigError(f"{_flag_of(fields[key]) if key in fields else key}{colon}{rest}") from None
            return function(**{name: values}, **given)

        command: Command = filled
        for key in reversed(fields):
            command = _option(key, fields[key], accepted(type_hints(record)[key]))(command)
        return command

    return add


def _flag_of(field: Field[Any]) -> str:
    """The long name of the option of a field."""
    names: list[str] = field.metadata["flag"].split()
    return next(name for name in names if name.startswith("--"))


def _option(name: str, field: Field[Any], expected: Accepted) -> Callable[[Command], Command]:
    note, multiple = str(field.metadata["help"]), bool(expected.lists)
    first, end = note.partition(" ")[0], "" if note.endswith((".", "]", ")", "LISTING")) else "."
    named = first.endswith((",", ":"))  # such as "web: one HTML file": names stay as they are written
    attributes: dict[str, Any] = {"help": f"{note[0] if named else note[0].upper()}{note[1:]}{end}"}
    if listing := field.metadata.get("listing"):
        attributes |= {"cls": ListingOption, "listing": listing}
    if metavar := field.metadata.get("metavar"):
        attributes["metavar"] = metavar
    if bool in expected.scalars:
        attributes["is_flag"] = True
    else:
        attributes |= {"type": _type(expected.lists[0] if multiple else expected), "multiple": multiple}
    if field.default is MISSING:
        attributes["required"] = True
    else:
        attributes["default"] = field.default
    return click.option(*field.metadata["flag"].split(), name, **attributes)


def _type(expected: Accepted) -> Any:
    """The type that click checks a value by, with the limits and choices of the field."""
    if expected.choices:
        return click.Choice(expected.choices)
    kinds: Any = ((int, click.IntRange), (float, click.FloatRange))
    for number, kind in kinds:
        if number in expected.scalars and str not in expected.scalars:
            limit = expected.scalars[number]
            ranged = kind(limit.minimum, limit.maximum, limit.exclusive_minimum, limit.exclusive_maximum)
            return number if limit == Range() else ranged
    return click.STRING
