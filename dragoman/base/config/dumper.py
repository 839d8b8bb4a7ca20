"""Dataclasses back to tables and TOML text, the list of all settings for help, and their JSON schema for a server."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, is_dataclass
from typing import Any, NamedTuple

from dragoman.base.config.fields import Accepted, accepted, default_of, fields_of, kind_of, kinds_of, type_hints
from dragoman.base.config.loader import build
from dragoman.base.config.toml_text import TomlTable, inline, join_place, one_of, shown, toml_key
from dragoman.base.errors import ConfigError

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance


TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
Schema = dict[str, Any]


class Setting(NamedTuple):
    """One setting as help shows it; `when` is the condition under which it exists, empty for always."""

    place: str
    expected: str
    default: str
    note: str
    when: str = ""
    flag: str = ""  # of commands that have it


def as_table(instance: DataclassInstance) -> TomlTable:
    """The nested table of an instance, `kind` first and None kept; the inverse of `build`."""
    table = plain(instance)
    assert isinstance(table, dict)
    return table


def by_place(instance: DataclassInstance) -> dict[str, object]:
    """All settings by their places, such as train.steps."""

    def flat(table: TomlTable, place: str) -> Iterator[tuple[str, object]]:
        for key, value in table.items():
            inner = join_place(place, key)
            yield from flat(value, inner) if isinstance(value, dict) else [(inner, value)]

    return dict(flat(as_table(instance), ""))


def plain(value: object, for_file: bool = False) -> object:
    """A value with dataclasses as dicts and tuples as lists; for a file, keys whose default is None are left out."""
    if isinstance(value, list | tuple):
        return [plain(item, for_file) for item in value]
    if not is_dataclass(value):
        return value
    kind = kind_of(value)
    table: TomlTable = {} if kind is None else {"kind": kind}
    for name, field in fields_of(value).items():
        inner = getattr(value, name)
        if not (for_file and inner is None and default_of(field) is None):
            table[name] = plain(inner, for_file)
    return table


def dump(instance: DataclassInstance) -> str:
    """TOML text from which `build` makes an equal instance; a ConfigError if the values make that impossible.

    None is left out where it is the default and written as "none" elsewhere; tables in lists are inline tables.
    """
    changed = differences(instance, build(type(instance), as_table(instance)))
    if changed:
        rows = (f"{place}: found {shown(now)}, which reads back as {shown(then)}" for place, now, then in changed)
        raise ConfigError("\n".join(rows))
    return "\n".join(_lines(plain(instance, for_file=True), "")).lstrip("\n") + "\n"


def _lines(table: Any, place: str) -> Iterator[str]:
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if place and (len(tables) < len(table) or not table):
        yield f"\n[{place}]"
    yield from (f"{toml_key(key)} = {inline(value)}" for key, value in table.items() if key not in tables)
    for key, value in tables.items():
        yield from _lines(value, join_place(place, key))


def differences(left: DataclassInstance, right: DataclassInstance) -> list[tuple[str, object, object]]:
    """Settings that differ between two instances, with both values; where kinds differ, only the kind."""
    return list(_differences(as_table(left), as_table(right), ""))


def _differences(left: TomlTable, right: TomlTable, place: str) -> Iterator[tuple[str, object, object]]:
    other_kind = left.get("kind") != right.get("kind")
    for key in ["kind"] if other_kind else dict.fromkeys([*left, *right]):
        before, after, inner = left.get(key), right.get(key), join_place(place, key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(before, after, inner)
        elif before != after:
            yield inner, before, after


def describe(cls: type[DataclassInstance], place: str = "") -> list[Setting]:
    """Every setting of a class, including those of nested classes and of every kind.

    A default is TOML text, "none" or "required": the value that holds while the enclosing table is absent.
    """
    return list(_describe_class(cls, place, "", None))


def _describe_class(cls: Any, place: str, when: str, instance: object) -> Iterator[Setting]:
    hints = type_hints(cls)
    for name, field in fields_of(cls).items():
        expected, default, inner = accepted(hints[name]), default_of(field), join_place(place, name)
        note, kinds = field.metadata.get("help", ""), kinds_of(expected.tables)
        flag = field.metadata.get("flag", "")
        if default is not MISSING and instance is not None:
            default = getattr(instance, name)
        if not expected.only_tables:
            text = "none" if default is None else inline(plain(default, for_file=True))
            yield Setting(inner, expected.words(), "required" if default is MISSING else text, note, when, flag)
        if len(kinds) > 1:
            chosen = inline(kind_of(default)) if type(default) in expected.tables else "required"
            yield Setting(f"{inner}.kind", one_of(kinds), chosen, note, when)
        for table in expected.tables:
            condition = f"{inner}.kind = {inline(kind_of(table))}" if len(kinds) > 1 else f"{inner} is a table"
            always = expected.only_tables and len(expected.tables) == 1
            both = when if always else f"{when} and {condition}" if when else condition
            yield from _describe_class(table, inner, both, default if type(default) is table else None)


def table_schema(cls: Any) -> Schema:
    kind = kind_of(cls)
    properties: dict[str, Schema] = {} if kind is None else {"kind": {"const": kind, "type": "string"}}
    required = ["kind"] if kind is not None else []
    hints = type_hints(cls)
    for name, field in fields_of(cls).items():
        properties[name] = value_schema(accepted(hints[name])) | {"description": field.metadata.get("help", "")}
        if (default := default_of(field)) is MISSING:
            required.append(name)
        else:
            properties[name]["default"] = plain(default)
    described = {"type": "object", "title": cls.__name__, "properties": properties, "additionalProperties": False}
    return described | ({"required": required} if required else {})


def scalar_schemas(expected: Accepted) -> list[Schema]:
    """What a field accepts besides lists and tables."""
    choices: list[Schema] = []
    for kind, limits in expected.scalars.items():
        bounds = {
            "exclusiveMinimum" if limits.exclusive_minimum else "minimum": limits.minimum,
            "exclusiveMaximum" if limits.exclusive_maximum else "maximum": limits.maximum,
        }
        choices.append({"type": TYPES[kind]} | {name: bound for name, bound in bounds.items() if bound is not None})
    if expected.choices:
        choices.append({"type": "string", "enum": list(expected.choices)})
    return choices


def value_schema(expected: Accepted) -> Schema:
    choices = scalar_schemas(expected)
    choices += [{"type": "array", "items": value_schema(item)} for item in expected.lists]
    choices += [table_schema(table) for table in expected.tables]
    if expected.none:
        choices.append({"type": "null"})
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def any_table_schema(classes: Iterable[Any]) -> Schema:
    """The JSON schema of a table of one of several kinds, or null."""
    return {"anyOf": [*(table_schema(cls) for cls in classes), {"type": "null"}]}
