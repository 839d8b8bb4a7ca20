"""Commented starter configurations, generated from the settings themselves so that they cannot go stale."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from dragoman.base import DOCUMENTATION, ConfigError, hint
from dragoman.base import config as settings
from dragoman.runs.tasks.config import build, preset_names
from dragoman.runs.tasks.table import TASKS

WIDTH = 119  # of a line with a comment
MISSING = object()  # marks a setting that a table does not have


def starter(task: str, overrides: Sequence[str] = ()) -> str:
    """The text of a starter configuration with `place=value` overrides.

    It sets a few settings, and shows all others behind '#' with their current value. An override may choose another
    kind of a part; the text then shows the settings of that kind.
    """
    if task not in TASKS:
        raise ConfigError(f"found {task!r}, no such task. {hint(task, TASKS)}")
    about, table = TASKS[task].starter
    table = settings.override({"task": task, **table}, overrides)
    if table["task"] != task:
        raise ConfigError(f"task: found {table['task']!r}, expected {task!r}, which was asked for, or nothing")
    resolved = settings.as_table(build(table))
    table = expand_kinds(table, resolved)
    lines = [
        f"#:schema {DOCUMENTATION}dragoman.schema.json",  # editors complete and check the file by it
        f"# A Dragoman configuration for {about}.",
        "# A line behind '#' shows a setting with its current value; remove the '#' to change it. '##' explains it.",
        "# Check it:  dragoman check THIS_FILE",
        "# Train it:  dragoman train THIS_FILE [place=value ...]",
        "",
        f'task = "{task}"',
    ]
    if table.get("preset"):
        others = ", ".join(name for name in preset_names() if name != table["preset"])
        lines += commented(f'preset = "{table["preset"]}"', f"or {others}")
    # TOML allows a table header once, so a table's own settings come before those of its sub-tables.
    tables: dict[str, list[str]] = {}
    for header, line in setting_lines(task, table, resolved):
        tables.setdefault(header, []).append(line)
    for header, rows in tables.items():
        lines += ["", f"[{header}]", *rows]
    return "\n".join(lines) + "\n"


def commented(setting: str, note: str) -> list[str]:
    """A setting with what it is: behind it where there is room, else above."""
    if len(line := f"{setting}  # {note}") <= WIDTH:
        return [line]
    return [f"## {part}" for part in wrap(note, WIDTH - 3, break_long_words=False, break_on_hyphens=False)] + [setting]


def setting_lines(task: str, table: Mapping[str, Any], resolved: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every setting of a task as a header and its lines; `table` has the chosen settings, `resolved` all of them."""
    searches = TASKS[task].searches
    for item in settings.describe(TASKS[task].config):
        header, _, key = item.place.rpartition(".")
        if not header or (header == "search" and not searches):
            continue
        if not applies(item.when, resolved) or value_at(resolved, header) is None:
            continue
        chosen = value_at(table, item.place, MISSING)
        if isinstance(chosen, Mapping) and "kind" in chosen:
            continue  # it has a table of its own
        value = value_at(resolved, item.place) if chosen in (MISSING, None) else chosen
        expected = item.expected
        if item.place == "train.metric":
            expected = f"one of {', '.join(TASKS[task].config.metrics())}"
        note = f"{item.note} ({expected})" if item.note else expected
        is_default = chosen is MISSING
        text = item.default if isinstance(value, Mapping) and is_default else settings.inline(value)
        for line in commented(f"{'# ' if is_default else ''}{key} = {text}", note):
            yield header, line


def expand_kinds(table: Mapping[str, Any], resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The table with bare kinds written as tables, so that they get a header of their own."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        full = resolved.get(key)
        if isinstance(full, Mapping):
            value = expand_kinds(value if isinstance(value, Mapping) else {"kind": full["kind"]}, full)
        out[key] = value
    return out


def value_at(table: Mapping[str, Any], place: str, default: Any = None) -> Any:
    """The value at a dotted name in nested tables, or the default."""
    value: Any = table
    for key in place.split("."):
        value = value.get(key, MISSING) if isinstance(value, Mapping) else MISSING
    return default if value is MISSING else value


def applies(when: str, resolved: Mapping[str, Any]) -> bool:
    """Whether a setting exists with the kinds that were chosen."""
    if not when:
        return True
    conditions = re.findall(r'(\S+) = "([^"]*)"', when)
    return bool(conditions) and all(value_at(resolved, place) == kind for place, kind in conditions)
