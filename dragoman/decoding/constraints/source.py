"""Constraints that follow from the source text: terminology to translate."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from dragoman.base import DataError
from dragoman.data.readers import read_lines
from dragoman.decoding.constraints.spec import OutputConstraints


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


def add_terms(constraints: OutputConstraints, source: str, terms: Terminology | None) -> OutputConstraints:
    """The constraints with the translations of the terms that a source has."""
    if terms is None:
        return constraints
    new = [phrases for phrases in terms.required_by(source) if phrases not in constraints.require]
    return replace(constraints, require=(*constraints.require, *new))
