"""Merge tables of settings, and change them by `place=value`.

A place is the dotted name of a setting, such as `train.steps`.
"""

from __future__ import annotations

import copy
import datetime
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from dragoman.base.config.toml_text import TomlTable, join_place, shown
from dragoman.base.errors import ConfigError


def merge(base: Mapping[str, object], over: Mapping[str, object]) -> TomlTable:
    """Merge two tables; `over` wins key by key.

    Where `over` changes the `kind` of a table, the other keys of the base are dropped: they belong to the old kind.
    """
    changed = "kind" in base and "kind" in over and base["kind"] != over["kind"]
    result: TomlTable = {} if changed else copy.deepcopy(dict(base))
    for key, value in over.items():
        inner = result.get(key)
        if is_kind(inner) and isinstance(value, Mapping):
            inner = {"kind": inner}  # a bare kind, now given settings of its own
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            result[key] = merge(inner, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def is_kind(value: object) -> bool:
    """Whether a value may be a bare kind, as in encoder = "recurrent"."""
    return isinstance(value, str) and re.fullmatch("[a-z][a-z0-9-]*", value) is not None


def override(table: Mapping[str, object], assignments: Sequence[str]) -> TomlTable:
    """Apply `place=value` assignments to a table; a value that is not TOML is plain text, `none` is None.

    Assignments are first merged with each other, so a setting may come before the `kind` it belongs to.
    """
    over: TomlTable = {}
    errors = []
    for assignment in assignments:
        place, equals, text = assignment.partition("=")
        keys = place.strip().split(".")
        if not equals or not all(keys):
            errors.append(f"found {shown(assignment)}, expected place=value")
            continue
        over = merge(over, nested(keys, parse_value(text.strip())))
    if errors:
        raise ConfigError("\n".join(errors))
    return merge(table, over)


@contextmanager
def errors_in(file: str | Path, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Begin each error of a setting with the file that it stands in, unless an override gave the setting."""
    try:
        yield
    except ConfigError as error:
        given = [assignment.partition("=")[0].strip() for assignment in overrides]
        lines = [line if _is_of(line, given) else f"{file}: {line}" for line in str(error).split("\n")]
        raise ConfigError("\n".join(lines)) from None


def _is_of(line: str, given: Sequence[str]) -> bool:
    """Whether an error is of a setting that was given, of its table, or of a part of it."""
    place = re.split(r":|\[", line)[0] + "."
    return any(place.startswith(f"{own}.") or f"{own}.".startswith(place) for own in given)


def nested(keys: Sequence[str], value: object) -> TomlTable:
    """The table in which only the place with these keys has a value."""
    return {keys[0]: nested(keys[1:], value) if len(keys) > 1 else value}


def dropped_settings(
    base: Mapping[str, object], over: Mapping[str, object], place: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """Tables whose `kind` `merge(base, over)` changes, each with the settings of the base that it drops."""
    if "kind" in base and "kind" in over and base["kind"] != over["kind"]:
        if lost := [key for key in base if key not in over and key != "kind"]:
            yield place, [join_place(place, key) for key in lost]
        return
    for key, value in over.items():
        inner = base.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            yield from dropped_settings(inner, value, join_place(place, key))
        elif isinstance(inner, Mapping) and is_kind(value) and (lost := [name for name in inner if name != "kind"]):
            yield join_place(place, key), [join_place(join_place(place, key), name) for name in lost]


def parse_value(text: str) -> object:
    if text == "none":
        return None
    try:
        # Inside brackets '#' comments out the closing bracket, so `1#2` fails here and stays text.
        tomllib.loads(f"value = [{text}]")
        value: object = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
    # No setting is a date, but a run may be named after one.
    return text if isinstance(value, datetime.date | datetime.time) else value
