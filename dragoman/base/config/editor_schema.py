"""JSON Schema of configuration files, for editors: what the loader accepts, with its shorter ways of writing.

Each class of settings is one definition. A table may leave out its `kind`, since a preset or a default may name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.base.config.dumper import Schema, plain, scalar_schemas
from dragoman.base.config.fields import Accepted, accepted, default_of, fields_of, kind_of, type_hints

DRAFT = "http://json-schema.org/draft-07/schema#"  # which all editors of TOML read


class FileSchema:
    """Collects the definitions of classes of settings."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}
        self._names: dict[Any, str] = {}

    def reference(self, cls: Any) -> Schema:
        """A reference to the definition of a class."""
        if cls not in self._names:
            name = cls.__name__
            name = self._names[cls] = f"{cls.__module__}.{name}" if name in self.definitions else name
            self.definitions[name] = {}  # a class may be part of itself
            self.definitions[name] = self.table(cls)
        return {"$ref": f"#/definitions/{self._names[cls]}"}

    def table(self, cls: Any) -> Schema:
        properties: dict[str, Schema] = {} if (kind := kind_of(cls)) is None else {"kind": {"const": kind}}
        hints = type_hints(cls)
        for name, field in fields_of(cls).items():
            properties[name] = self.value(accepted(hints[name])) | {"description": field.metadata.get("help", "")}
            if isinstance(value := plain(default_of(field)), str | int | float | bool):
                properties[name]["default"] = value
        return {"type": "object", "properties": properties, "additionalProperties": False}

    def value(self, expected: Accepted) -> Schema:
        choices = scalar_schemas(expected)
        choices += [{"type": "array", "items": self.value(item)} for item in expected.lists]
        choices += [self.reference(table) for table in expected.tables]
        words = list(expected.kinds) if len(expected.kinds) > 1 else []  # a bare kind
        if expected.none or "none" in words:
            words = [*dict.fromkeys([*words, "none"])]
        if expected.only_lists:
            choices.append({"type": "string"})  # items between commas
        elif words and str not in expected.scalars:
            choices.append({"enum": words})
        return choices[0] if len(choices) == 1 else {"anyOf": choices}


def file_schema(configs: Mapping[str, Any], usual: str, more: Mapping[str, Schema], title: str) -> Schema:
    """The schema of a file whose `task` chooses one of several classes; `more` are keys that no class has."""
    schema = FileSchema()
    cases: list[Schema] = []
    for task, config in configs.items():
        own = schema.table(config)
        own["properties"] |= {"task": {"const": task}, **more}
        chosen: Schema = {"properties": {"task": {"const": task}}}
        cases.append({"if": chosen if task == usual else chosen | {"required": ["task"]}, "then": own})
    tasks = {"task": {"enum": [*configs], "default": usual, "description": "the kind of problem"}}
    return {
        "$schema": DRAFT, "title": title, "type": "object", "properties": tasks, "required": ["data"], "allOf": cases,
        "definitions": dict(sorted(schema.definitions.items())),
    }  # fmt: skip
