"""Glossaries that clients store on the server: dictionaries for pairs of languages, which become terminology."""

from __future__ import annotations

import csv
import io
import json
import time
import uuid
from dataclasses import dataclass

from dragoman.base import ConfigError
from dragoman.data import same_language, short_code
from dragoman.serving.state import NotFound, ServerState
from dragoman.serving.text_translation import served_languages

MAX_ENTRIES = 10_000
MAX_DICTIONARIES = 100
Pair = tuple[str, str]  # source and target language
Entries = dict[str, str]  # term → translation


@dataclass(frozen=True)
class Glossary:
    """A stored glossary."""

    glossary_id: str
    name: str
    creation_time: str
    dictionaries: dict[Pair, Entries]

    @classmethod
    def load(cls, key: str, data: bytes) -> Glossary:
        """A glossary from what `dump` wrote; `key` is the name of its file."""
        name, created, dictionaries = json.loads(data)
        table = {(source, target): entries for source, target, entries in dictionaries}
        return cls(str(uuid.UUID(key)), name, created, table)

    def dump(self) -> bytes:
        dictionaries = [(*pair, entries) for pair, entries in self.dictionaries.items()]
        return json.dumps([self.name, self.creation_time, dictionaries]).encode()

    def entries(self, source: str, target: str) -> Entries:
        """The terms and translations for two languages."""
        pair = (base_code(source), base_code(target))
        if pair not in self.dictionaries:
            raise NotFound(f"Dictionary not found: this glossary has none for {pair[0]} → {pair[1]}")
        return self.dictionaries[pair]

    def set(self, pair: Pair, entries: Entries) -> None:
        """Add a dictionary as the last, in place of one for the same languages."""
        self.dictionaries.pop(pair, None)
        self.dictionaries[pair] = entries
        if len(self.dictionaries) > MAX_DICTIONARIES:
            raise ConfigError(f"dictionaries: found {len(self.dictionaries)}, expected at most {MAX_DICTIONARIES}")


def create(state: ServerState, name: str, dictionaries: dict[Pair, Entries]) -> Glossary:
    """Store a glossary until the server stops."""
    if state.glossaries.full:
        raise ConfigError("glossaries: found as many as this server keeps; delete one first")
    created = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    data = Glossary("", name, created, dictionaries).dump()
    return Glossary.load(state.glossaries.add(data), data)


def stored_key(glossary_id: str) -> str:
    return glossary_id.replace("-", "").lower()


def get(state: ServerState, glossary_id: str) -> Glossary:
    """A stored glossary; raises NotFound."""
    data = state.glossaries.get(key := stored_key(glossary_id))
    if data is None:
        raise NotFound(f"glossary_id: found {glossary_id[:40]!r}, expected the id of a stored glossary")
    return Glossary.load(key, data)


def every(state: ServerState) -> list[Glossary]:
    files = [(key, state.glossaries.get(key)) for key in state.glossaries.ids()]
    stored = [Glossary.load(key, data) for key, data in files if data is not None]
    return sorted(stored, key=lambda glossary: (glossary.creation_time, glossary.glossary_id))


def replace(state: ServerState, glossary: Glossary) -> None:
    """Store a changed glossary in place of the old one."""
    state.glossaries.replace(stored_key(glossary.glossary_id), glossary.dump())


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
