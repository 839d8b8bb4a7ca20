"""Merge tables of settings, and change them by `place=value`.

A place is the dotted name of a setting, such as `train.steps`.
"""

from __future__ import annotations

import copy
import datetime
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence

from dragoman.config.toml_text import join_place, shown
from dragoman.errors import ConfigError

Table = dict[str, object]


def merge(base: Mapping[str, object], over: Mapping[str, object]) -> Table:
    """Two tables as one, the second winning key by key.

    A table that changes its `kind` keeps none of the base's other keys, for they belonged to the other kind.
    """
    changed = "kind" in base and "kind" in over and base["kind"] != over["kind"]
    result: Table = {} if changed else copy.deepcopy(dict(base))
    for key, value in over.items():
        below = result.get(key)
        if is_kind(below) and isinstance(value, Mapping):
            below = {"kind": below}  # a bare kind, now given settings of its own
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            result[key] = merge(below, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def is_kind(value: object) -> bool:
    """Whether a value may be the kind of a part and nothing more, as in encoder = "recurrent"."""
    return isinstance(value, str) and re.fullmatch("[a-z][a-z0-9-]*", value) is not None


def override(table: Mapping[str, object], assignments: Sequence[str]) -> Table:
    """A table changed by `place.to.key=value`; a value that is not TOML is plain text, `none` is None.

    The assignments are merged among themselves first, so a setting may stand before the `kind` it belongs to.
    """
    over: Table = {}
    errors = []
    for assignment in assignments:
        place, equals, text = assignment.partition("=")
        keys = place.strip().split(".")
        if not equals or not all(keys):
            errors.append(f"found {shown(assignment)}, expected place=value")
            continue
        nested: Table = {keys[-1]: parse_value(text.strip())}
        for key in reversed(keys[:-1]):
            nested = {key: nested}
        over = merge(over, nested)
    if errors:
        raise ConfigError("\n".join(errors))
    return merge(table, over)


def dropped_settings(
    base: Mapping[str, object], over: Mapping[str, object], place: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """Where `merge` puts another part in the place of one, and which of its settings it leaves out there."""
    if "kind" in base and "kind" in over and base["kind"] != over["kind"]:
        if lost := [key for key in base if key not in over and key != "kind"]:
            yield place, [join_place(place, key) for key in lost]
        return
    for key, value in over.items():
        below = base.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            yield from dropped_settings(below, value, join_place(place, key))
        elif isinstance(below, Mapping) and is_kind(value) and (lost := [name for name in below if name != "kind"]):
            yield join_place(place, key), [join_place(join_place(place, key), name) for name in lost]


def parse_value(text: str) -> object:
    if text == "none":
        return None
    try:
        # Within brackets a '#' hides the closing one, so `1#2` fails here and stays text, not 1.
        tomllib.loads(f"value = [{text}]")
        value: object = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
    # No setting is a date, but a run may well be named after one.
    return text if isinstance(value, datetime.date | datetime.time) else value
