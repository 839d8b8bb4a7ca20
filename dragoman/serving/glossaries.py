"""Glossaries that clients store on the server: dictionaries for pairs of languages, which become terminology."""

from __future__ import annotations

import csv
import io
import json
import time
import uuid
from typing import Any

from dragoman.data.languages import same_language, short_code
from dragoman.errors import ConfigError
from dragoman.serving.state import NotFound, ServerState
from dragoman.serving.text_translation import served_languages

MAX_ENTRIES = 10_000
MAX_DICTIONARIES = 100
Glossary = dict[str, Any]  # name, creation_time, dictionaries
Dictionary = dict[str, Any]  # source_lang, target_lang, entries


def create(state: ServerState, name: str, dictionaries: list[Dictionary]) -> tuple[str, Glossary]:
    """Store a glossary until the server stops; returns its id and the glossary."""
    if state.glossaries.full:
        raise ConfigError("glossaries: found as many as this server keeps; delete one first")
    created = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    glossary = {"name": name, "creation_time": created, "dictionaries": dictionaries}
    return shown_id(state.glossaries.add(_encoded(glossary))), glossary


def _encoded(glossary: Glossary) -> bytes:
    return json.dumps(glossary).encode("utf-8", "surrogatepass")


def shown_id(key: str) -> str:
    return str(uuid.UUID(key))


def stored_id(glossary_id: str) -> str:
    """The id under which a glossary is stored."""
    return glossary_id.replace("-", "").lower()


def get(state: ServerState, glossary_id: str) -> Glossary:
    """A stored glossary; raises NotFound."""
    data = state.glossaries.get(stored_id(glossary_id))
    if data is None:
        raise NotFound(f"glossary_id: found {glossary_id[:40]!r}, expected the id of a stored glossary")
    glossary: Glossary = json.loads(data)
    return glossary


def every(state: ServerState) -> list[tuple[str, Glossary]]:
    """All glossaries with their ids, the oldest first."""
    found = []
    for key in state.glossaries.ids():
        if (data := state.glossaries.get(key)) is not None:
            found.append((shown_id(key), json.loads(data)))
    return sorted(found, key=lambda one: (one[1]["creation_time"], one[0]))


def replace(state: ServerState, glossary_id: str, glossary: Glossary) -> None:
    """Store a changed glossary in place of the old one."""
    state.glossaries.replace(stored_id(glossary_id), _encoded(glossary))


def delete(state: ServerState, glossary_id: str) -> None:
    get(state, glossary_id)
    state.glossaries.remove(stored_id(glossary_id))


def base_code(code: str) -> str:
    """The language of a glossary: without its region."""
    return short_code(code.split("-")[0].lower())


def new_dictionary(state: ServerState, source: str, target: str, text: str, form: str) -> Dictionary:
    """A dictionary of a glossary, from its text; the server must translate between its languages."""
    source, target = base_code(source), base_code(target)
    table = served_languages(state)
    if not any(
        same_language(source, code) and any(same_language(target, other) for other in targets)
        for code, targets in table.items()
    ):
        raise ConfigError(f"Unsupported glossary source and target language pair: found {source} → {target}")
    return {"source_lang": source, "target_lang": target, "entries": parse_entries(text, form)}


def dictionary_of(glossary: Glossary, source: str, target: str) -> Dictionary:
    """The dictionary of a glossary for two languages; raises NotFound."""
    pair = (base_code(source), base_code(target))
    for dictionary in glossary["dictionaries"]:
        if (dictionary["source_lang"], dictionary["target_lang"]) == pair:
            found: Dictionary = dictionary
            return found
    raise NotFound(f"Dictionary not found: this glossary has none for {pair[0]} → {pair[1]}")


def without(glossary: Glossary, dictionary: Dictionary) -> Glossary:
    """A glossary without the dictionary for two languages."""
    pair = (dictionary["source_lang"], dictionary["target_lang"])
    kept = [one for one in glossary["dictionaries"] if (one["source_lang"], one["target_lang"]) != pair]
    return {**glossary, "dictionaries": kept}


def with_dictionary(glossary: Glossary, dictionary: Dictionary) -> Glossary:
    """A glossary with a dictionary, in place of one that it may have for the same languages."""
    kept = without(glossary, dictionary)["dictionaries"]
    if len(kept) >= MAX_DICTIONARIES:
        raise ConfigError(f"dictionaries: found {len(kept) + 1}, expected at most {MAX_DICTIONARIES}")
    return {**glossary, "dictionaries": [*kept, dictionary]}


def terms_of(state: ServerState, glossary_id: str, source: str, target: str) -> dict[str, str | list[str]]:
    """The entries of a glossary for two languages, as terminology."""
    return dict(dictionary_of(get(state, glossary_id), source, target)["entries"])


def as_tsv(entries: dict[str, str]) -> str:
    """Entries as lines of term, tab and translation."""
    return "\n".join(f"{term}\t{translation}" for term, translation in entries.items())


def parse_entries(text: str, form: str) -> dict[str, str]:
    """The terms and translations of a glossary in a tab-separated or CSV file."""
    entries: dict[str, str] = {}
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
