"""Settings as JSON schema, so that a server describes them as the loader reads them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING
from typing import Any

from dragoman.config.dump import plain
from dragoman.config.fields import Accepted, accepted, default_of, fields_of, kind_of, type_hints

TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
Schema = dict[str, Any]


def table_schema(cls: Any) -> Schema:
    """The JSON schema of a table of settings, with its `kind` if it has one."""
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


def value_schema(expected: Accepted) -> Schema:
    """The JSON schema of the values that a setting accepts."""
    choices: list[Schema] = []
    for kind, limits in expected.scalars.items():
        bounds = {
            "exclusiveMinimum" if limits.exclusive_minimum else "minimum": limits.minimum,
            "exclusiveMaximum" if limits.exclusive_maximum else "maximum": limits.maximum,
        }
        choices.append({"type": TYPES[kind]} | {name: bound for name, bound in bounds.items() if bound is not None})
    if expected.choices:
        choices.append({"type": "string", "enum": list(expected.choices)})
    choices += [{"type": "array", "items": value_schema(item)} for item in expected.lists]
    choices += [table_schema(table) for table in expected.tables]
    if expected.none:
        choices.append({"type": "null"})
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def any_table_schema(classes: Iterable[Any]) -> Schema:
    """The JSON schema of a table of one of several kinds, or null."""
    return {"anyOf": [*(table_schema(cls) for cls in classes), {"type": "null"}]}
