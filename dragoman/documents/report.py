"""Translations with what is doubtful about them: one line, and a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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

    def as_table(self) -> dict[str, Any]:
        return {**self._asdict(), "findings": [finding.as_table() for finding in self.findings]}


def counts_of(pairs: Sequence[CheckedPair]) -> dict[str, int]:
    """In how many pairs each kind of finding occurs, hard kinds first, then the commonest first."""
    counts = Counter(kind for pair in pairs for kind in {(not finding.hard, finding.kind) for finding in pair.findings})
    ordered = sorted(counts.items(), key=lambda entry: (entry[0][0], -entry[1], entry[0][1]))
    return {kind: count for (_, kind), count in ordered}


def findings_line(pairs: Sequence[CheckedPair]) -> str:
    """How many pairs have findings, and which; empty: none has."""
    found = sum(bool(pair.findings) for pair in pairs)
    if not found:
        return ""
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in counts_of(pairs).items())
    return f"{found:,} of {len(pairs):,} segments {'has' if found == 1 else 'have'} findings: {kinds}"


def report_page(files: Mapping[str, Sequence[CheckedPair]]) -> str:
    """A page with all pairs that have findings, hard ones first."""
    from dragoman.web import build_page

    hard = {finding.kind for pairs in files.values() for pair in pairs for finding in pair.findings if finding.hard}
    every = [pair for pairs in files.values() for pair in pairs]
    rows = [{"file": file, "hard": pair.hard, **pair.as_table()} for file, pairs in files.items() for pair in pairs]
    found = sorted((row for row in rows if row["findings"]), key=lambda row: not row["hard"])
    data = {
        "files": list(files), "segments": len(every), "found": len(found), "counts": counts_of(every),
        "hard": sorted(hard), "pairs": found[:SHOWN],
    }  # fmt: skip
    return build_page("Checked translations", "qa-page", data)


def write_report(path: str, files: Mapping[str, Sequence[CheckedPair]]) -> None:
    with atomic_write(path) as beside:
        beside.write_text(report_page(files), encoding="utf-8", newline="\n")
