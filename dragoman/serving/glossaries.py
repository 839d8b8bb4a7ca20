"""Glossaries that clients store on the server: dictionaries for pairs of languages, which become terminology."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from dragoman.base import ConfigError
from dragoman.data import same_language, short_code
from dragoman.serving.state import NotFound, ServerCall, ServerState
from dragoman.serving.store import TOGETHER
from dragoman.serving.text_translation import served_languages

MAX_ENTRIES = 10_000
MAX_DICTIONARIES = 100
Pair = tuple[str, str]  # source and target language
Entries = dict[str, str]  # term → translation


@dataclass(frozen=True)
class Glossary:
    """What is stored about a glossary, without the entries."""

    glossary_id: str
    name: str
    creation_time: str
    dictionaries: dict[Pair, int]  # number of entries


def owner_of(call: ServerCall) -> str:
    """Who sees the glossaries that a request stores: all who have the token, or else the address of the client."""
    token = call.state.config.token
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest() if token else call.client


def stored_key(glossary_id: str) -> str:
    return glossary_id.replace("-", "").lower()


def every(call: ServerCall, glossary_id: str = "") -> list[Glossary]:
    """The glossaries that a request may see, or the one with this id; the oldest first."""
    rows = call.state.store.read(
        "SELECT id, name, created, source, target, count FROM glossaries LEFT JOIN dictionaries ON glossary = id "
        "WHERE owner = ?1 AND (?2 = '' OR id = ?2) ORDER BY created, id, number",
        owner_of(call), stored_key(glossary_id),
    )  # fmt: skip
    found: dict[str, Glossary] = {}
    for key, name, created, source, target, count in rows:
        glossary = found.setdefault(key, Glossary(str(uuid.UUID(key)), name, created, {}))
        if source is not None:
            glossary.dictionaries[source, target] = count
    return list(found.values())


def get(call: ServerCall, glossary_id: str) -> Glossary:
    """A stored glossary; raises NotFound."""
    if not stored_key(glossary_id) or not (found := every(call, glossary_id)):
        raise NotFound(f"glossary_id: found {glossary_id[:40]!r}, expected the id of a stored glossary")
    return found[0]


def entries(call: ServerCall, glossary_id: str, source: str, target: str) -> Entries:
    """The terms and translations of a glossary for two languages; raises NotFound."""
    get(call, glossary_id)
    pair = (base_code(source), base_code(target))
    query = "SELECT entries FROM dictionaries WHERE glossary = ? AND source = ? AND target = ?"
    if not (found := call.state.store.read(query, stored_key(glossary_id), *pair)):
        raise NotFound(f"Dictionary not found: this glossary has none for {pair[0]} → {pair[1]}")
    table: Entries = json.loads(found[0][0])
    return table


def create(call: ServerCall, name: str, dictionaries: dict[Pair, Entries]) -> Glossary:
    """Store a glossary."""
    key = uuid.uuid4().hex
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    with call.state.store.change() as rows:
        rows.execute("INSERT INTO glossaries VALUES (?, ?, ?, ?)", (key, owner_of(call), name, created))
        for pair, terms in dictionaries.items():
            _write(rows, key, pair, terms)
        _check_limits(rows, call, key)
    return get(call, key)


def update(
    call: ServerCall,
    glossary_id: str,
    name: str | None = None,
    added: Sequence[tuple[Pair, Entries]] = (),
    replaced: Sequence[tuple[Pair, Entries]] = (),
) -> None:
    """Rename a glossary, add entries to its dictionaries, or put dictionaries in place of others, all or nothing."""
    with _changing(call, glossary_id) as (rows, key):
        if name:
            rows.execute("UPDATE glossaries SET name = ? WHERE id = ?", (name, key))
        for pair, terms in added:
            query = "SELECT entries FROM dictionaries WHERE glossary = ? AND source = ? AND target = ?"
            found = rows.execute(query, (key, *pair)).fetchone()
            _write(rows, key, pair, {**(json.loads(found[0]) if found else {}), **terms})
        for pair, terms in replaced:
            _write(rows, key, pair, terms)
        _check_limits(rows, call, key)


def delete(call: ServerCall, glossary_id: str, pair: Pair | None = None) -> None:
    """Forget a glossary, or its dictionary for two languages; raises NotFound."""
    with _changing(call, glossary_id) as (rows, key):
        if pair is None:
            rows.execute("DELETE FROM glossaries WHERE id = ?", (key,))
            return
        query = "DELETE FROM dictionaries WHERE glossary = ? AND source = ? AND target = ?"
        if not rows.execute(query, (key, *pair)).rowcount:
            raise NotFound(f"Dictionary not found: this glossary has none for {pair[0]} → {pair[1]}")


@contextmanager
def _changing(call: ServerCall, glossary_id: str) -> Iterator[tuple[sqlite3.Connection, str]]:
    """The rows for one change of a glossary that is there, and its key."""
    key = stored_key(glossary_id)
    with call.state.store.change() as rows:
        query = "SELECT 1 FROM glossaries WHERE id = ? AND owner = ?"
        if not rows.execute(query, (key, owner_of(call))).fetchone():
            raise NotFound(f"glossary_id: found {glossary_id[:40]!r}, expected the id of a stored glossary")
        yield rows, key


def _write(rows: sqlite3.Connection, key: str, pair: Pair, terms: Entries) -> None:
    """Write a dictionary as the last of a glossary, in place of one for the same languages."""
    if len(terms) > MAX_ENTRIES:
        raise ConfigError(f"entries: found {len(terms):,}, expected at most {MAX_ENTRIES:,}")
    text = json.dumps(terms)
    last = "(SELECT coalesce(max(number), 0) + 1 FROM dictionaries WHERE glossary = ?1)"
    rows.execute(
        f"INSERT OR REPLACE INTO dictionaries VALUES (?1, ?2, ?3, {last}, ?4, ?5, ?6)",
        (key, *pair, len(terms), len(text), text),
    )


def _check_limits(rows: sqlite3.Connection, call: ServerCall, key: str) -> None:
    """Raise an error, so that nothing is written, for more than a client may store."""
    limits = call.state.limits
    (dictionaries,) = rows.execute("SELECT count(*) FROM dictionaries WHERE glossary = ?", (key,)).fetchone()
    if dictionaries > MAX_DICTIONARIES:
        raise ConfigError(f"dictionaries: found {dictionaries}, expected at most {MAX_DICTIONARIES}")
    (count,) = rows.execute("SELECT count(*) FROM glossaries WHERE owner = ?", (owner_of(call),)).fetchone()
    if count > limits.glossaries:
        raise ConfigError(f"glossaries: found {count:,}, expected at most {limits.glossaries:,}; delete one first")
    sizes = "SELECT coalesce(sum(size), 0) FROM dictionaries JOIN glossaries ON glossary = id"
    (own,) = rows.execute(f"{sizes} WHERE owner = ?", (owner_of(call),)).fetchone()
    (together,) = rows.execute(sizes).fetchone()
    for size, most in ((own, limits.glossary_bytes), (together, TOGETHER * limits.glossary_bytes)):
        if size > most:
            raise ConfigError(f"glossaries: found {size:,} bytes in all, expected at most {most:,}; delete one first")


def base_code(code: str) -> str:
    """The language of a glossary: without its region."""
    return short_code(code.split("-")[0].lower())


def new_dictionary(state: ServerState, source: str, target: str, text: str, form: str) -> tuple[Pair, Entries]:
    """A dictionary of a glossary, from its text; the server must translate between its languages."""
    source, target = base_code(source), base_code(target)
    table = served_languages(state)
    if not any(
        same_language(source, code) and any(same_language(target, other) for other in targets)
        for code, targets in table.items()
    ):
        raise ConfigError(f"Unsupported glossary source and target language pair: found {source} → {target}")
    return (source, target), parse_entries(text, form)


def as_tsv(entries: Entries) -> str:
    """Entries as lines of term, tab and translation."""
    return "\n".join(f"{term}\t{translation}" for term, translation in entries.items())


def parse_entries(text: str, form: str) -> Entries:
    """The terms and translations of a glossary in a tab-separated or CSV file."""
    entries: Entries = {}
    try:
        rows = [line.split("\t") for line in text.splitlines()] if form == "tsv" else [*csv.reader(io.StringIO(text))]
    except csv.Error as error:
        raise ConfigError(f"entries: found no CSV ({error}), expected lines of term and translation") from None
    for number, row in enumerate(rows, 1):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) < 2 or not row[0].strip() or not row[1].strip() or max(len(row[0]), len(row[1])) > 1_000:
            raise ConfigError(f"entries: found {'/'.join(row)[:60]!r} in line {number}, expected term and translation")
        term, translation = row[0].strip(), row[1].strip()
        if entries.setdefault(term, translation) != translation:
            raise ConfigError(f"entries: found {term[:60]!r} in line {number} with a second translation, expected one")
    if not 0 < len(entries) <= MAX_ENTRIES:
        raise ConfigError(f"entries: found {len(entries):,}, expected 1 to {MAX_ENTRIES:,}")
    return entries
