"""The vocabulary of settings: number ranges, documented dataclass fields, and which TOML values a field accepts."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, is_dataclass
from functools import cache
from itertools import chain
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from dragoman.base.config.table import Table
from dragoman.base.config.toml_text import either, one_of
from dragoman.base.errors import ConfigError

T = TypeVar("T")
Listing = Callable[[], str]


@dataclass(frozen=True)
class Range:
    """Limits of a number, written `Annotated[int, Range(1)]`; None means no limit on that side."""

    minimum: float | None = None
    maximum: float | None = None
    exclusive_maximum: bool = False
    exclusive_minimum: bool = False

    def holds(self, value: float) -> bool:
        if isinstance(value, float) and not math.isfinite(value):
            return False  # no comparison with nan holds, nor does its negation
        low, high = self.minimum, self.maximum
        above = low is None or value > low or (value == low and not self.exclusive_minimum)
        below = high is None or value < high or (value == high and not self.exclusive_maximum)
        return above and below

    @property
    def words(self) -> str:
        """The limits as error messages state them; empty without limits."""
        low = "above" if self.exclusive_minimum else "at least"
        high = "below" if self.exclusive_maximum else "at most"
        sides = ((low, self.minimum), (high, self.maximum))
        return " and ".join(f"{word} {limit:g}" for word, limit in sides if limit is not None)


# Types that many settings have.
Size = Annotated[int, Range(1)]
Depth = Annotated[int, Range(1, 10_000)]  # layers: each takes time to build, however narrow it is
SizeOrNone = Annotated[int, Range(0)]
Share = Annotated[float, Range(0.0, 1.0, exclusive_maximum=True)]


@typing.overload
def setting(default: T, *, help: str, flag: str = "", metavar: str = "", listing: Listing | None = None) -> T: ...
@typing.overload
def setting(*, default_factory: Callable[[], T], help: str) -> T: ...
@typing.overload
def setting(*, help: str, flag: str = "", metavar: str = "", listing: Listing | None = None) -> Any: ...
def setting(default: Any = MISSING, *, default_factory: Any = MISSING, help: str, **metadata: Any) -> Any:
    """A dataclass field with a help text; it is required if it has neither a default nor a factory.

    `flag` names the option of commands that have this field ("--output", or "-o --output"), `metavar` its value in
    the help. `listing` gives the text for LISTING in the help when the help is shown: the entries of a table, say.
    """
    metadata = {"help": help, **{name: value for name, value in metadata.items() if value}}
    if default_factory is not MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


# In this order because a bool is an int as well.
WORDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
PLURALS = {"a whole number": "whole numbers", "a number": "numbers", "text": "text", "a table": "tables"}


@dataclass(frozen=True)
class Accepted:
    """The values a field accepts, grouped by TOML type."""

    scalars: Mapping[Any, Range]
    choices: tuple[str, ...]
    lists: tuple[Accepted, ...]
    classes: tuple[Any, ...]  # dataclasses, and tables of them that plug-ins may add to
    none: bool

    @property
    def tables(self) -> tuple[Any, ...]:
        """The dataclasses that a TOML table can become."""
        if not any(isinstance(member, Table) for member in self.classes):
            return self.classes
        settings = ([e.config for e in m.values()] if isinstance(m, Table) else [m] for m in self.classes)
        return tuple(chain.from_iterable(settings))

    @property
    def kinds(self) -> list[str]:
        """The kinds of the dataclasses, without the import of those that a table has late."""
        members = ([*m] if isinstance(m, Table) else [*kinds_of([m])] for m in self.classes)
        return list(chain.from_iterable(members))

    def class_of(self, kind: str) -> Any:
        """The dataclass of a kind, and the import of no other; None for an unknown kind."""
        for member in self.classes:
            if isinstance(member, Table):
                if (config := member.config_of(kind)) is not None:
                    return config
            elif kind_of(member) == kind:
                return member
        return None

    @property
    def only_tables(self) -> bool:
        """Whether the field accepts tables and nothing else."""
        return not (self.scalars or self.choices or self.lists or self.none)

    @property
    def only_lists(self) -> bool:
        """Whether the field accepts lists of text or numbers, or lists of these, and nothing else."""
        others = self.scalars or self.choices or self.classes
        return bool(self.lists) and not others and bool(self.lists[0].scalars or self.lists[0].only_lists)

    def words(self, limits: bool = True) -> str:
        """The "expected …" phrase of an error, with or without the limits of numbers."""
        words = []
        for kind, limit in self.scalars.items():
            words.append(WORDS[kind] + (f", {limit.words}" if limits and limit.words else ""))
        if self.choices:
            words.append(one_of(self.choices))
        for item in self.lists:
            inner = item.words(limits)
            words.append(f"a list of {PLURALS[inner]}" if inner in PLURALS else f"a list, each {inner}")
        if self.tables:
            several = f" of kind {either([*kinds_of(self.tables)])}" if len(self.tables) > 1 else ""
            words.append(f"a table{several}")
        return either(words + ["none"] * self.none)


def union_members(annotation: Any, limits: Range) -> Iterator[tuple[Any, Range]]:
    """The members of a union, each with the `Range` that annotates it."""
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        tables = [(note, limits) for note in notes if isinstance(note, Table)]
        if tables:
            yield from tables
        else:
            yield from union_members(inner, next((note for note in notes if isinstance(note, Range)), limits))
    elif get_origin(annotation) in (typing.Union, UnionType):
        for member in get_args(annotation):
            yield from union_members(member, limits)
    else:
        yield annotation, limits


@cache
def accepted(annotation: Any) -> Accepted:
    scalars: dict[Any, Range] = {}
    choices: list[str] = []
    lists: list[Accepted] = []
    tables: list[Any] = []
    none = False
    for part, limits in union_members(annotation, Range()):
        arguments = get_args(part)
        if part in WORDS:
            scalars[part] = limits if part in (int, float) else Range()
        elif part is NoneType:
            none = True
        elif get_origin(part) is Literal:
            assert all(isinstance(choice, str) for choice in arguments), f"{part}: a choice must be text"
            choices += arguments
        elif get_origin(part) is tuple:
            assert arguments[1:] == (...,), f"{part}: write tuple[X, ...]"
            lists.append(accepted(arguments[0]))
        else:
            assert is_dataclass(part) or isinstance(part, Table), f"{part}: not a type that a setting can have"
            tables.append(part)
    named = [part for part in tables if not isinstance(part, Table)]  # a table sees to it that names differ
    distinct = len(named) < 2 or len(kinds_of(named)) == len(named)
    assert distinct, f"{annotation}: each table needs its own kind"
    assert not (none and "none" in choices), f"{annotation}: both None and a choice called none"
    return Accepted(scalars, tuple(choices), tuple(lists), tuple(tables), none)


@cache
def type_hints(cls: Any) -> Mapping[str, Any]:
    """The annotations of a class. Evaluating them takes most of the time of reading a configuration."""
    return get_type_hints(cls, include_extras=True)


def fields_of(cls: Any) -> Mapping[str, dataclasses.Field[Any]]:
    """The fields of a dataclass that its constructor takes, by name."""
    return {field.name: field for field in dataclasses.fields(cls) if field.init}


class Limited:
    """Options whose numbers are finite and within their limits, whether a command or Python gave them."""

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, annotation in type_hints(cls).items():
            value: Any = getattr(self, name, None)
            for part, limits in union_members(annotation, Range()) if type(value) in (int, float) else ():
                if part in (int, float) and not limits.holds(value):
                    expected = ", ".join(filter(None, ("a finite number", limits.words)))
                    raise ConfigError(f"{name}: found {value}, expected {expected}")


def default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def kind_of(cls: Any) -> str | None:
    """The `kind` that selects a class; None for a class without one, or with an ordinary field of that name."""
    kind = None if "kind" in fields_of(cls) else getattr(cls, "kind", None)
    return kind if isinstance(kind, str) else None


def kinds_of(classes: Iterable[Any]) -> dict[str, Any]:
    return {kind: cls for cls in classes if (kind := kind_of(cls)) is not None}
