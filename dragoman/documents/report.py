"""Translations with what is doubtful about them: counts, one line, and a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.base import atomic_write

if TYPE_CHECKING:
    from dragoman.inference import Finding

SHOWN = 5_000  # pairs on a page: more make it slow, and nobody reads them


class CheckedPair(NamedTuple):
    """A source with its translation, where they stand, and what is doubtful."""

    place: str
    source: str
    output: str
    findings: Sequence[Finding] = ()

    @property
    def hard(self) -> bool:
        return any(finding.hard for finding in self.findings)


@dataclass
class CheckedFile:
    """The translations of a file that have findings, and how many were checked."""

    file: str = ""
    segments: int = 0
    found: list[CheckedPair] = field(default_factory=list)

    def add(self, pair: CheckedPair) -> None:
        self.segments += 1
        if pair.findings:
            self.found.append(pair)

    @property
    def hard(self) -> int:
        """How many translations have hard findings."""
        return sum(pair.hard for pair in self.found)

    @property
    def line(self) -> str:
        """How many translations have findings, and which; empty: none has."""
        if not self.found:
            return ""
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in counts_of([self]).items())
        verb = "has" if len(self.found) == 1 else "have"
        return f"{len(self.found):,} of {self.segments:,} segments {verb} findings: {kinds}"


def counts_of(files: Sequence[CheckedFile]) -> dict[str, int]:
    """In how many translations each kind of finding occurs, hard kinds first, then the commonest first."""
    pairs = (pair for file in files for pair in file.found)
    counts = Counter(kind for pair in pairs for kind in {(not finding.hard, finding.kind) for finding in pair.findings})
    ordered = sorted(counts.items(), key=lambda entry: (entry[0][0], -entry[1], entry[0][1]))
    return {kind: count for (_, kind), count in ordered}


def findings_table(files: Sequence[CheckedFile]) -> dict[str, Any]:
    """The findings of files as values for JSON; pairs with hard findings come first."""
    rows = [(file.file, pair) for file in files for pair in file.found]
    return {
        "files": [file.file for file in files],
        "segments": sum(file.segments for file in files),
        "found": len(rows),
        "hard": sum(file.hard for file in files),
        "counts": counts_of(files),
        "pairs": [
            {"file": file, **pair._asdict(), "findings": [finding.as_table() for finding in pair.findings]}
            for file, pair in sorted(rows, key=lambda row: not row[1].hard)
        ],
    }


def write_report(path: str, files: Sequence[CheckedFile]) -> None:
    """Write a page with the translations that have findings."""
    from dragoman.web import build_page

    table = findings_table(files)
    page = build_page("Checked translations", "qa-page", {**table, "pairs": table["pairs"][:SHOWN]})
    with atomic_write(path, with_folder=True) as beside:
        beside.write_text(page, encoding="utf-8", newline="\n")
