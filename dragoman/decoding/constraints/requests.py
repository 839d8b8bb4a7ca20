"""What a user asks of an output, as text (FIELD H9), and the rules over tokens that keep it.

Forbidden texts are found wherever they stand, inside words too and however they are cut into tokens: to forbid a
word but not words that hold it, write its spaces ("cat" forbids "category"; " cat " does not, nor "cat" at either
end of the output). Required phrases are written as the tokenizer itself cuts them, after a space or without one.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.data.readers.lines import read_lines
from dragoman.data.tokenizers.tokenizer import UNK, Tokenizer
from dragoman.decoding.constraints.automata import Among, Forbid, Prefix, Require, Rule, Rules
from dragoman.decoding.constraints.regex import Grammar
from dragoman.decoding.constraints.token_bytes import Surfaces
from dragoman.errors import ConfigError, DataError, hint

PLACEHOLDERS = (
    r"https?://[^\s<>\"']*[^\s<>\"'.,;:!?)\]]",
    r"[\w.+-]+@[\w-]+\.[\w.-]*\w",
    r"</?[^\W\d_][^<>]*>|</?\d+\s*/?>",  # <b>, </b>, <1>, <br/>
    r"\{\{[^{}]*\}\}|\$?\{[^{}]*\}",
    r"%\(\w+\)[a-z]|%\d*\$?[sdf]\b",
)


@dataclass(frozen=True)
class Control:
    """What is asked of one output."""

    prefix: str = ""
    forbid: tuple[str, ...] = ()
    require: tuple[tuple[str, ...], ...] = ()  # each a phrase, or several of which one is enough
    allow: tuple[str, ...] = ()  # the output is one of these
    pattern: str = ""  # the whole output matches this regular expression
    kept: tuple[tuple[str, int], ...] = ()  # placeholders and how often each is written

    def __bool__(self) -> bool:
        return self != NO_CONTROL


NO_CONTROL = Control()


class Asked(NamedTuple):
    """An input with what is asked of its output."""

    text: str
    control: Control = NO_CONTROL


def control_of(table: dict[str, Any], place: str) -> Control:
    """A control from plain values: a text or a list of texts for each field."""
    out: dict[str, Any] = {}
    for name in ("prefix", "pattern"):
        value = table.get(name)
        if value is not None and not isinstance(value, str):
            raise DataError(f"{place}: {name}: found {value!r}, expected a text")
        out[name] = value or ""
    for name in ("forbid", "require", "allow"):
        value = table.get(name)
        values = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(values, list | tuple) or not all(_is_phrase(one, name) for one in values):
            raise DataError(f"{place}: {name}: found {value!r}, expected a text or a list of texts, none of them empty")
        out[name] = (
            tuple((one,) if isinstance(one, str) else tuple(one) for one in values)
            if name == "require"
            else tuple(values)
        )
    return Control(**out)


def _is_phrase(value: object, name: str) -> bool:
    """Alternatives are allowed where something is required; only an allowed output may be empty."""
    if isinstance(value, str):
        return bool(value.strip()) or name == "allow" or (name == "forbid" and value != "")
    return (
        name == "require"
        and isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(one, str) and one.strip() for one in value)
    )


def controls(
    count: int,
    prefix: str | Sequence[str | None] | None = None,
    pattern: str | Sequence[str | None] | None = None,
    **lists: str | Sequence[Any] | None,
) -> list[Control]:
    """Controls for so many inputs, from one value for all or from a list with one entry for each.

    For `forbid`, `require` and `allow`, a list of texts is for all inputs and a list of lists has one for each.
    """
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    alike = True
    for name, value in {"prefix": prefix, "pattern": pattern, **lists}.items():
        single = name in ("prefix", "pattern")
        several = isinstance(value, list | tuple) and (
            single or (isinstance(value, list) and any(one is None or isinstance(one, list) for one in value))
        )
        if several and len(value or ()) != count:
            raise ConfigError(f"{name}: found {len(value or ())} entries, expected one for each of the {count} inputs")
        alike = alike and not several
        for place, row in enumerate(rows):
            row[name] = value[place] if several and value is not None else value
    if alike and rows:  # a long list of allowed outputs is looked at once, not once an input
        return [control_of(rows[0], "input 1")] * count
    return [control_of(row, f"input {number}") for number, row in enumerate(rows, 1)]


class Ruler:
    """Makes rules of controls for one target vocabulary; equal controls share theirs, with all that was worked out."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.surfaces = Surfaces(tokenizer)
        self._made: dict[Control, Rules | None] = {NO_CONTROL: None}

    def rules(self, control: Control, place: str = "input") -> Rules | None:
        """The rules of a control, None if it asks for nothing.

        Placeholders that cannot be spelled, or not together with all else, have no rule: see `restored`.
        """
        if control not in self._made:
            if len(self._made) > 1000:
                self._made = {NO_CONTROL: None}
            self._made[control] = self._make(control, place)
        return self._made[control]

    def _make(self, control: Control, place: str) -> Rules | None:
        rules: list[Rule] = []
        if control.prefix:
            rules.append(Prefix(self.surfaces, control.prefix))
        if control.allow:
            rows = self.tokenizer.encode_batch(control.allow)
            spelled = [row for row in rows if UNK not in row]
            if not spelled:
                raise DataError(f"{place}: allow: none of {len(rows)} texts can be spelled with the run's vocabulary")
            rules.append(Among(spelled))
        if control.pattern:
            rules.append(Grammar(self.surfaces, control.pattern))
        needed: list[list[tuple[int, ...]]] = []
        for phrases in control.require:
            cuts = [cut for phrase in phrases for cut in self.surfaces.cuts(phrase.strip())]
            if not cuts:
                raise DataError(
                    f"{place}: require: '{phrases[0]}' cannot be spelled with the run's vocabulary; its letters or "
                    "words were not in the training data"
                )
            needed.append(cuts)
        times = [1] * len(needed)
        kept = [(text, count) for text, count in control.kept if self.spells(text)]
        needed += [self.surfaces.cuts(text) for text, _ in kept]
        times += [count for _, count in kept]
        if needed:
            rules.append(Require(needed, times))
        limited = [(text, count) for text, count in kept if not self._inside(text, control)]
        forbidden = [*((text, 0) for text in control.forbid), *limited]
        if forbidden:
            rules.append(Forbid(self.surfaces, [text for text, _ in forbidden], [count for _, count in forbidden]))
        if not rules:
            return None
        made = Rules(rules, len(self.surfaces))
        if math.isinf(made.distance(made.start)):
            if control.kept:  # what the source asks for gives way, and is put in afterwards
                return self._make(replace(control, kept=()), place)
            raise DataError(f"{place}: no output can keep all that is asked of it: {_shown(control)}")
        return made

    @staticmethod
    def _inside(text: str, control: Control) -> bool:
        """Whether a placeholder is also part of something else that must be written."""
        others = [other for other, _ in control.kept if other != text]
        others += [phrase for phrases in control.require for phrase in phrases] + [control.prefix, *control.allow]
        return any(text in other for other in others)

    def spells(self, text: str) -> bool:
        """Whether the vocabulary can write a text."""
        return bool(self.surfaces.cuts(text))


def _shown(control: Control) -> str:
    parts = [f"{name} {getattr(control, name)!r}" for name in ("prefix", "pattern") if getattr(control, name)]
    parts += [f"{name} {one!r}" for name in ("forbid", "allow") for one in getattr(control, name)]
    parts += [f"require {' or '.join(map(repr, phrases))}" for phrases in control.require]
    return ", ".join(parts + [f"the placeholder {text!r}" for text, _ in control.kept])[:300]


# --- what the source itself asks for


def placeholders(text: str, patterns: Sequence[str] = PLACEHOLDERS) -> tuple[tuple[str, int], ...]:
    """What must survive of a source (tags, variables, addresses), and how often each stands there."""
    found: Counter[str] = Counter()
    rest = text
    for pattern in patterns:  # an address may hold what looks like a variable: what was found is gone
        for match in re.finditer(pattern, rest):
            found[match[0]] += 1
        rest = re.sub(pattern, lambda match: "\n" * len(match[0]), rest)
    return tuple(sorted(found.items(), key=lambda pair: text.index(pair[0])))


def restored(output: str, source: str, kept: Sequence[tuple[str, int]]) -> str:
    """An output with the placeholders it misses put where they stand in the source, by share of words."""
    for text, count in kept:
        missing = max(0, count - output.count(text))
        starts = [match.start() for match in re.finditer(re.escape(text), source)]
        for start in starts[len(starts) - missing :] if missing else ():
            words = output.split(" ") if output else []
            before, all_words = len(source[:start].split()), max(1, len(source.split()))
            words.insert(round(len(words) * before / all_words), text)
            output = " ".join(words)
    return output


class Terminology:
    """Terms of the source and how each must be written; of several ways for one term any is enough."""

    def __init__(self, terms: dict[str, tuple[str, ...]]) -> None:
        self.terms = terms
        # Longest first, so that of two terms that begin alike the longer is found.
        ordered = sorted(terms, key=len, reverse=True)
        self._pattern = re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, ordered)) + r")(?!\w)") if ordered else None

    def asked_by(self, source: str) -> tuple[tuple[str, ...], ...]:
        """What the terms in a source require."""
        if self._pattern is None:
            return ()
        return tuple(dict.fromkeys(self.terms[match[0]] for match in self._pattern.finditer(source)))

    @classmethod
    def read(cls, path: str | Path) -> Terminology:
        """From a file with a source term and a target term a line, tab-separated; empty lines are skipped."""
        terms: dict[str, tuple[str, ...]] = {}
        for number, line in enumerate(read_lines(path), 1):
            if not line.strip():
                continue
            columns = [column.strip() for column in line.split("\t")]
            if len(columns) != 2 or not all(columns):
                raise DataError(
                    f"{path}:{number}: found {len(columns)} columns, expected a source term and a target term, "
                    "tab-separated"
                )
            known = terms.get(columns[0], ())
            terms[columns[0]] = known if columns[1] in known else (*known, columns[1])
        return cls(terms)


def completed(control: Control, source: str, terms: Terminology | None, keep_placeholders: bool) -> Control:
    """A control with what the source itself asks for; a term that is required already is not asked twice."""
    if terms is not None:
        new = [one for one in terms.asked_by(source) if one not in control.require]
        control = replace(control, require=(*control.require, *new))
    return replace(control, kept=placeholders(source)) if keep_placeholders else control


FIELDS = ("prefix", "forbid", "require", "allow", "pattern")


def object_from_json(line: str, place: str) -> dict[str, Any]:
    """An input from a line of JSON: an object with "source" and perhaps more; a text is its own source."""
    try:
        table = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place}: found no JSON ({error})") from error
    if isinstance(table, str):
        return {"source": table}
    if not isinstance(table, dict) or not isinstance(table.get("source"), str):
        raise DataError(f'{place}: found {line[:60]!r}, expected an object with a text "source"')
    return table


def asked_from_json(line: str, place: str, general: Control = NO_CONTROL) -> Asked:
    """An input from a line of JSON: a text, or an object with "source" and what is asked of this output alone."""
    table = object_from_json(line, place)
    for name in table:
        if name not in ("source", *FIELDS):
            raise DataError(f"{place}: found the field '{name}'. {hint(name, FIELDS)}")
    own = control_of(table, place)
    return Asked(table["source"], Control(**{name: getattr(own, name) or getattr(general, name) for name in FIELDS}))
