"""Constraints that follow from the source text: placeholders to copy and terminology to translate."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path

from dragoman.base import DataError
from dragoman.data.readers import read_lines
from dragoman.decoding.constraints.spec import OutputConstraints

# Each pattern must take linear time. Where it begins with a repetition, it may begin only where that begins.
PLACEHOLDERS = (
    r"(?:https?://|(?<![\w.])www\.)[^\s<>\"']*[^\s<>\"'.,;:!?)\]]",
    r"(?<![\w.+-])[\w.+-]++@[\w-]++\.[\w.-]*\w",
    r"</?[^\W\d_][^<>]*>|</?\d+\s*/?>",  # <b>, </b>, <1>, <br/>
    r"\{\{[^{}]*\}\}|\$?\{[^{}]*\}",
    r"%\(\w+\)[a-z]|%\d*\$?[sdf]\b",
)
# International symbols, which the languages that use Latin letters share.
UNITS = (
    "[%‰°€$£¥]|°[CF]|[kmµn]?[mgVW]|cm|dm|ha|[mcd]?l|[kMG]?Hz|kWh|Nm|[km]?Pa|bar|dB|[kKMGT]i?B|[kMG]bit/s|"
    "km/h|m/s|px|dpi|rpm"
)
# Numbers and units, copied where a model has never read their digits.
NUMBERS = (rf"\d+(?:[.,:/’'-]\d+)*(?:[ \u00a0]?(?:{UNITS})(?!\w))?",)


def find_placeholders(text: str, patterns: Sequence[str] = PLACEHOLDERS) -> tuple[tuple[str, int], ...]:
    """The tags, variables and addresses of a source that the output must copy, and how often each occurs."""
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    rest = text
    for pattern in patterns:  # an address may contain what looks like a variable: blank out each match
        for match in re.finditer(pattern, rest):
            counts[match[0]] += 1
            first.setdefault(match[0], match.start())
        rest = re.sub(pattern, lambda match: "\n" * len(match[0]), rest)
    return tuple(sorted(counts.items(), key=lambda pair: first[pair[0]]))


def restore_placeholders(output: str, source: str, placeholders: Sequence[tuple[str, int]]) -> str:
    """Insert missing placeholders at the same relative position as in the source, counted in its other words."""
    missing: list[tuple[int, str]] = []  # with the start of each in the source
    texts = [text for text, _ in placeholders]
    written = Counter(output[start:end] for start, end in protected_spans(output, texts))
    starts: dict[str, list[int]] = {}
    for start, end in protected_spans(source, texts):
        starts.setdefault(source[start:end], []).append(start)
    for text, count in placeholders:
        if (absent := count - written[text]) > 0:
            missing += [(start, text) for start in starts.get(text, ())[-absent:]]
    if not missing:
        return output
    copied = {start for start, _ in missing}
    words = output.split(" ") if output else []
    source_words = [match.start() for match in re.finditer(r"\S+", source) if match.start() not in copied]
    inserted: dict[int, list[str]] = {}  # by the number of the word that they come before
    for start, text in sorted(missing):
        before = bisect_left(source_words, start)
        inserted.setdefault(round(len(words) * before / max(1, len(source_words))), []).append(text)
    return " ".join(
        chain.from_iterable((*inserted.get(index, ()), *words[index : index + 1]) for index in range(len(words) + 1))
    )


def protected_spans(text: str, texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where texts to copy stand; of two that begin alike, the longer one, so that 1 is not found in 12.

    A pattern with all of them would try each at every place, which takes minutes for a document of placeholders.
    """
    known, end = {*texts} - {""}, 0
    lengths = sorted({len(protected) for protected in known}, reverse=True)
    letters = {protected[0] for protected in known}
    for match in re.finditer("|".join(map(re.escape, letters)) or r"(?!)", text):
        start = match.start()
        piece = next((piece for size in lengths if (piece := text[start : start + size]) in known), "")
        if piece and start >= end:
            end = start + len(piece)
            yield start, end


def without_protected(text: str, texts: Sequence[str]) -> str:
    spans = [*protected_spans(text, texts), (len(text), len(text))]
    return "".join(text[end:start] for (_, end), (start, _) in pairwise([(0, 0), *spans]))


class Terminology:
    """Source terms with their required translations; where a term has several, any of them is enough."""

    def __init__(self, terms: dict[str, tuple[str, ...]]) -> None:
        self.terms = terms

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # Longest first, so that of two terms with the same beginning the longer one matches.
        ordered = sorted(self.terms, key=len, reverse=True)
        return re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, ordered)) + r")(?!\w)")

    def required_by(self, source: str) -> tuple[tuple[str, ...], ...]:
        if not self.terms:
            return ()
        return tuple(dict.fromkeys(self.terms[match[0]] for match in self._pattern.finditer(source)))

    @classmethod
    def read(cls, path: str | Path) -> Terminology:
        """Read a file with one tab-separated pair of source term and target term per line; skip empty lines."""
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


def add_source_constraints(
    constraints: OutputConstraints, source: str, terms: Terminology | None, copy_placeholders: bool
) -> OutputConstraints:
    if terms is not None:
        new = [phrases for phrases in terms.required_by(source) if phrases not in constraints.require]
        constraints = replace(constraints, require=(*constraints.require, *new))
    return replace(constraints, placeholders=find_placeholders(source)) if copy_placeholders else constraints


def add_numbers(constraints: OutputConstraints, source: str, unreadable: Callable[[str], bool]) -> OutputConstraints:
    """Constraints extended by the numbers of a source that a model cannot read: they are copied like placeholders."""
    if not unreadable(source):
        return constraints
    known = {text for text, _ in constraints.placeholders}
    every = find_placeholders(source, (*PLACEHOLDERS, *NUMBERS) if known else NUMBERS)
    copied = tuple((text, count) for text, count in every if text in known or unreadable(text))
    return replace(constraints, placeholders=copied)
