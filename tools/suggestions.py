"""Write dragoman/commands/suggestions.json: what the tables of the package say, for the completion of a shell."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from dragoman.commands.completion import FILE, Suggestions, add, values_of


def collect() -> str:
    """The text of `suggestions.json`, from the tables of the package."""
    from dragoman.decoding.method import METHODS
    from dragoman.exchange.registry import EXPORTERS
    from dragoman.runs.tasks.table import TASKS
    from dragoman.scoring.registry import metrics_by_name

    methods: dict[str, Suggestions] = {kind: {} for kind in sorted(METHODS)}
    for kind, found in methods.items():
        add_settings(found, METHODS[kind].config, "method")
    settings: Suggestions = {}
    for task in TASKS.values():
        add_settings(settings, task.config, "")
    settings |= {"preset": ("a model named after a paper", []), "task": ("the kind of problem", [*TASKS])}
    table = {
        "tasks": [*TASKS], "metrics": sorted(metrics_by_name()), "exporters": [*EXPORTERS],
        "methods": methods, "settings": dict(sorted(settings.items())),
    }  # fmt: skip
    return json.dumps(table, ensure_ascii=False, separators=(",", ":")).replace('],"', '],\n"') + "\n"


def add_settings(found: Suggestions, cls: Any, place: str) -> None:
    """Add the settings of a class and of all kinds of its tables; several tasks may have a place with other kinds."""
    from dragoman.base.config.fields import accepted, fields_of, kinds_of, type_hints
    from dragoman.base.config.toml_text import join_place

    for name, field in fields_of(cls).items():
        expected, inner = accepted(type_hints(cls)[name]), join_place(place, name)
        kinds = kinds_of(expected.tables)
        note = str(field.metadata.get("help", ""))
        if not expected.only_tables:
            add(found, inner, note, values_of(expected))
        if len(kinds) > 1:
            add(found, f"{inner}.kind", note, kinds)
        for table in expected.tables:
            add_settings(found, table, inner)


if __name__ == "__main__":
    Path(str(resources.files("dragoman.commands") / FILE)).write_text(collect(), encoding="utf-8")
