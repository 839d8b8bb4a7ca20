"""Styles that clients store on the server: rules and instructions that a translation should follow."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from dragoman.base import ConfigError
from dragoman.data import same_language
from dragoman.serving.glossaries import owner_of, stored_key
from dragoman.serving.state import NotFound, ServerCall

MAX_BYTES = 100_000  # of a style: 200 instructions of DeepL's length
Style = dict[str, Any]  # as DeepL's version 3 describes it


def missing(style_id: str) -> NotFound:
    return NotFound(f"style_id: found {style_id[:40]!r}, expected the id of a stored style")


def every(call: ServerCall, style_id: str = "") -> list[Style]:
    """The styles that a request may see, or the one with this id; the oldest first."""
    rows = call.state.store.read(
        "SELECT about FROM styles WHERE owner = ?1 AND (?2 = '' OR id = ?2) ORDER BY created, id",
        owner_of(call), stored_key(style_id),
    )  # fmt: skip
    return [json.loads(about) for (about,) in rows]


def get(call: ServerCall, style_id: str) -> Style:
    """A stored style; raises NotFound."""
    if not stored_key(style_id) or not (found := every(call, style_id)):
        raise missing(style_id)
    return found[0]


def instructions(style: Style, target: str) -> tuple[str, ...]:
    """What a translation into a language has to follow; raises ConfigError for a style of another language."""
    if not same_language(target.split("-")[0], style["language"].split("-")[0]):
        raise ConfigError(f"target_lang must match style rule language: found {target}, expected {style['language']}")
    rules = [value for rules in style["configured_rules"].values() for value in rules.values()]
    return (*rules, *(instruction["prompt"] for instruction in style["custom_instructions"]))


def create(call: ServerCall, style: Style) -> Style:
    """Store a style."""
    key, limits = uuid.uuid4(), call.state.limits
    style = {"style_id": str(key), "version": 0, "creation_time": _now(), **style}
    with call.state.store.change() as rows:
        rows.execute("INSERT INTO styles VALUES (?, ?, ?, '')", (key.hex, owner_of(call), style["creation_time"]))
        (count,) = rows.execute("SELECT count(*) FROM styles WHERE owner = ?", (owner_of(call),)).fetchone()
        if count > limits.glossaries:
            raise ConfigError(f"style_rules: found {count:,}, expected at most {limits.glossaries:,}; delete one first")
        _write(rows, style)
    return style


@contextmanager
def change(call: ServerCall, style_id: str) -> Iterator[Style]:
    """A style that is written when the block ends; raises NotFound."""
    with call.state.store.change() as rows:
        query = "SELECT about FROM styles WHERE id = ? AND owner = ?"
        if not (found := rows.execute(query, (stored_key(style_id), owner_of(call))).fetchone()):
            raise missing(style_id)
        style = json.loads(found[0])
        yield style
        _write(rows, style)


def delete(call: ServerCall, style_id: str) -> None:
    """Forget a style; raises NotFound."""
    with call.state.store.change() as rows:
        query = "DELETE FROM styles WHERE id = ? AND owner = ?"
        if not rows.execute(query, (stored_key(style_id), owner_of(call))).rowcount:
            raise missing(style_id)


def _write(rows: Any, style: Style) -> None:
    style |= {"version": style["version"] + 1, "updated_time": _now()}
    text = json.dumps(style)
    if len(text) > MAX_BYTES:
        raise ConfigError(f"style_rules: found a style of {len(text):,} bytes, expected at most {MAX_BYTES:,}")
    rows.execute("UPDATE styles SET about = ? WHERE id = ?", (text, stored_key(style["style_id"])))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
