"""Build frozen dataclasses from TOML tables, strictly.

A field may be bool, int, float, str, Literal of strings, tuple[X, ...], another dataclass, or a union of these. A union
of several dataclasses is a choice: the table's `kind` names the class (`kind: ClassVar[str]`), and the bare name of a
kind stands for a table with nothing but that kind. Where a field is a list of text or numbers, a text has its items
between commas, and lists of lists between semicolons. TOML has no null: an absent key means the default, and in a field
that may be None the text "none" means None. Keys that a present table leaves out come from its class, never from the
default of the enclosing field.
"""

from __future__ import annotations

import codecs
import math
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any, TypeVar

from dragoman.base.config.fields import WORDS, Accepted, accepted, default_of, fields_of, kind_of, kinds_of, type_hints
from dragoman.base.config.overrides import parse_value
from dragoman.base.config.toml_text import TomlTable, either, join_place, one_of, shown
from dragoman.base.errors import ConfigError, Problem, broken_note, hint, nearest, suggestion

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")


def build(cls: type[D], table: Mapping[str, object], place: str = "", origin: str | Path = "") -> D:
    """Build an instance of `cls` from a table, or raise one ConfigError with a line for every mistake.

    A class may define `problems(self) -> Iterable[str]` for cross-field validation; it yields "field: message" or a
    message. Each line starts with the origin (such as a file name) if one is given.
    """
    errors: list[str] = []
    instance = _read_value(accepted(cls), table, place, errors, MISSING)
    if errors:
        mends = [error.mend for error in errors if isinstance(error, Problem)]
        raise ConfigError("\n".join(f"{origin}: {error}" if str(origin) else error for error in errors), mends)
    assert isinstance(instance, cls)
    return instance


def _build_instance(
    cls: Any, table: Mapping[str, object], place: str, errors: list[str], expected: Accepted, base: object = MISSING
) -> object:
    """An instance of `cls`, or None if errors were added; `expected` also has the classes of other kinds.

    Keys that the table leaves out come from `base` (the field's default) if that is an instance of `cls`, otherwise
    from the defaults of the class.
    """
    before = len(errors)
    fields, kind = fields_of(cls), kind_of(cls)
    names = [*fields] if kind is None else ["kind", *fields]
    for key in table:
        if key not in names:
            others = kinds_of(other for other in expected.tables if other is not cls)
            owners = [name for name, other in others.items() if key in fields_of(other)]
            deeper = sorted(places_named(cls, key, place), key=lambda name: name.count("."))  # the usual one first
            match = nearest(key, names)
            known = f" Did you mean '{join_place(place, match)}'?" if match else f" {hint(key, names)}" if names else ""
            if deeper:
                known = f" Did you mean {either(deeper)}?"
            elsewhere = f" for kind {kind}, only for {either(owners)}"
            errors.append(f"{join_place(place, key)}: no such setting" + (elsewhere if owners else f".{known}"))
    hints = type_hints(cls)
    values: TomlTable = {}
    for name, field in fields.items():
        wanted, inner = accepted(hints[name]), join_place(place, name)
        if type(base) is cls:
            values[name] = getattr(base, name)
        if name in table:
            default = values[name] if name in values else _default_for(field, table[name])
            values[name] = _read_value(wanted, table[name], inner, errors, default)
        elif name not in values and field.default is MISSING and field.default_factory is MISSING:
            # Naming the missing keys of a missing table helps more than naming the table.
            inside: list[str] = []
            if wanted.only_tables:
                _read_value(wanted, {}, inner, inside, MISSING)
            errors.extend(inside or [f"{inner}: missing; expected {wanted.words()}"])
    if len(errors) > before:
        return None
    instance = cls(**values)
    for problem in instance.problems() if hasattr(instance, "problems") else ():
        named = re.split(r"[.:\[]", problem)[0] in fields
        errors.append(place + ("." if named and place else ": ") + problem if place else problem)
    return instance


def _default_for(field: Field[Any], value: object) -> object:
    """The default that a given value builds upon. A table that names its kind needs no default from a factory."""
    named = isinstance(value, Mapping) and "kind" in value
    return MISSING if named and field.default_factory is not MISSING else default_of(field)


def places_named(cls: Any, name: str, place: str, depth: int = 3) -> list[str]:
    """The places of settings called `name` in the tables inside a class, at most four."""
    places: list[str] = []
    hints = type_hints(cls)
    for field in fields_of(cls) if depth else ():
        if hints[field] is Any:
            continue
        inner = join_place(place, field)
        for table in accepted(hints[field]).tables:
            if name in fields_of(table):
                places.append(join_place(inner, name))
            places += places_named(table, name, inner, depth - 1)
    return list(dict.fromkeys(places))[:4]


def _read_value(expected: Accepted, value: object, place: str, errors: list[str], default: object) -> object:
    """The value of a field; meaningless if errors were added."""
    if expected.none and (value is None or value == "none"):
        return None
    named = "none" if value is None and "none" in kinds_of(expected.tables) else value
    if isinstance(named, str) and len(expected.kinds) > 1 and not expected.scalars and named not in expected.choices:
        value = {"kind": named}  # a bare kind stands for a table with nothing else
    if isinstance(value, Mapping) and expected.classes:
        chosen = _choose_class(expected, value, place, errors, default)
        return None if chosen is None else _build_instance(chosen, value, place, errors, expected, default)
    if isinstance(value, str) and value and expected.only_lists:  # as people type it: data.columns=en,de
        inner = expected.lists[0]
        parts = [part.strip() for part in value.split(";" if inner.lists else ",")]
        value = parts if inner.lists or str in inner.scalars else [parse_value(part) for part in parts]
    if isinstance(value, list | tuple) and expected.lists:
        trials: list[list[str]] = []
        for item in expected.lists:
            trial: list[str] = []
            items = [_read_value(item, part, f"{place}[{i}]", trial, MISSING) for i, part in enumerate(value)]
            if not trial:
                return tuple(items)
            trials.append(trial)
        errors += sorted(trials, key=len)[0]
        return None
    scalar, complaint = _read_scalar(expected, value)
    if complaint:
        errors.append(f"{place}: {complaint}")
    return scalar


def _choose_class(
    expected: Accepted, table: Mapping[str, object], place: str, errors: list[str], default: object
) -> Any:
    """The class that the table's `kind` names; without a kind, the class of the default or the only class."""
    kind = "none" if "kind" in table and table["kind"] is None else table.get("kind")
    if isinstance(kind, str) and (chosen := expected.class_of(kind)) is not None:
        return chosen
    kinds = expected.kinds
    if "kind" not in table or not kinds:
        classes = expected.tables
        if type(default) in classes or len(classes) == 1:
            return type(default) if type(default) in classes else classes[0]
        errors.append(f"{join_place(place, 'kind')}: missing; expected {one_of(kinds)}")
        return None
    errors.append(f"{join_place(place, 'kind')}: {wrong(kind, one_of(kinds), kinds)}{broken_note()}")
    return None


def _read_scalar(expected: Accepted, value: Any) -> tuple[object, str]:
    """A scalar as the field stores it, and an error message or an empty text."""
    if value is None and "none" in expected.choices:
        value = "none"  # the command line cannot know that this field has a choice of that name
    if value in expected.choices:
        return value, ""
    kind = next((known for known in WORDS if isinstance(value, known)), None)
    if kind is int and int not in expected.scalars:
        kind = float
    if kind not in expected.scalars:
        return None, wrong(value, expected.words(limits=False), expected.choices)
    if kind is bool:
        return value, ""
    if kind is str:
        unwritable = re.search("[\ud800-\udfff]", value)
        return value, f"found {shown(value)}, expected text that UTF-8 can hold" if unwritable else ""
    if kind is int and not -(2**63) <= value < 2**63:
        return None, f"found {shown(value)}, expected one that TOML can hold"
    try:
        number = float(value) if kind is float else value
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        return None, f"found {shown(value)}, expected a finite number"
    limits = expected.scalars[kind]
    return number, "" if limits.holds(number) else f"found {shown(value)}, expected {limits.words}"


def wrong(value: object, words: str, choices: Iterable[str] = ()) -> str:
    """A "found …, expected …" message with the nearest valid choice, or with the type of the value."""
    choices = list(choices)
    if isinstance(value, str) and choices:
        return f"found {shown(value)}, expected {words}{suggestion(value, choices)}"
    text = shown(value)
    if isinstance(value, Mapping | list | tuple):
        text = "a table" if isinstance(value, Mapping) else "a list"
    elif value is not None and not isinstance(value, bool):
        of_type = (word for kind, word in WORDS.items() if isinstance(value, kind))
        text += f" ({next(of_type, type(value).__name__)})"
    return f"found {text}, expected {words}"


MAX_PARTS = 100
# tomllib takes quadratic time for a dotted key: 40 kB take seconds.
_LONG_KEY = re.compile(rb"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){%d}""" % MAX_PARTS)


def read_toml(path: str | Path) -> TomlTable:
    """Read a TOML file; a ConfigError names the file and, for invalid TOML, the line."""
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"{path}: found a folder, expected a TOML file")
    try:
        data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except FileNotFoundError:
        names = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise ConfigError(f"{path}: no such file{suggestion(path.name, names) or '.'}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if long_key := _LONG_KEY.search(data):
        line = data.count(b"\n", 0, long_key.start()) + 1
        raise ConfigError(f"{path}:{line}: found a key of more than {MAX_PARTS} parts, expected fewer")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: found bytes that are not UTF-8, expected text") from None
    except (ValueError, RecursionError) as error:
        where = re.search(r"\(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        at_line = f":{where[1] or len(data.splitlines())}" if where else ""
        raise ConfigError(f"{path}{at_line}: not valid TOML: {error}") from None
