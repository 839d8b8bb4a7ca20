"""Word alignments: file formats, precision, recall and alignment error rate (Och and Ney 2003)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dragoman.base import DataError

Link = tuple[int, int]  # index of the source word, index of the target word
Links = frozenset[Link]

_PHARAOH = re.compile(r"(\d+)([-p?])(\d+)(?:[:/][\d.eE+-]+)?")  # some tools add a probability
_NUMBERED = re.compile(r"\s*(\d+)\s+(\d+)\s+(\d+)(?:\s+([SP]))?(?:\s+[\d.]+)?\s*")  # one link a line (NAACL 2003)


class GoldAlignment(NamedTuple):
    """The gold links of one sentence pair."""

    sure: Links
    possible: Links  # includes the sure ones


def links_text(links: Iterable[Link]) -> str:
    """Links in Pharaoh format, "0-0 1-2", in the order of the source."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_alignment(line: str, location: str = "alignment", first: int = 0) -> GoldAlignment:
    """The links of a line such as "0-0 1p2": `-` is sure, `p` or `?` possible; word indices start at `first`."""
    sure, possible = set[Link](), set[Link]()
    for token in line.split():
        match = _PHARAOH.fullmatch(token)
        if not match:
            raise DataError(f"{location}: found '{token}', expected links such as 0-0 (sure) or 1p2 (possible)")
        link = _from_zero((int(match[1]), int(match[3])), first, f"{location}: found '{token}'")
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return GoldAlignment(frozenset(sure), frozenset(possible))


def _from_zero(link: Link, first: int, found: str) -> Link:
    if min(link) < first:
        raise DataError(f"{found}, expected words counted from {first}")
    return link[0] - first, link[1] - first


def read_alignments(lines: Iterable[str], name: str = "alignment", first: int | None = None) -> list[GoldAlignment]:
    """The links of every sentence pair: one line per pair ("0-0 1p2") or per link ("0001 1 2 S", sorted by pair).

    `first` is the index of the first word; by default 0 for a line per pair, and 1 for a line per link.
    """
    rows = list(lines)
    numbered = [_NUMBERED.fullmatch(row) for row in rows if row.strip()]
    if numbered and all(numbered):
        return _from_numbered(rows, name, 1 if first is None else first)
    return [parse_alignment(row, f"{name}:{number}", first or 0) for number, row in enumerate(rows, 1)]


def _from_numbered(rows: Sequence[str], name: str, first: int) -> list[GoldAlignment]:
    """Pairs are numbered from 1; a pair without links has no line; a link with word 0 marks an unaligned word."""
    pairs: list[tuple[set[Link], set[Link]]] = []  # sure links, possible links
    for number, row in enumerate(rows, 1):
        match = _NUMBERED.fullmatch(row)
        if not match:
            continue
        pair, source, target = (int(field) for field in match.groups()[:3])
        if pair < max(1, len(pairs)):
            raise DataError(f"{name}:{number}: found pair {pair} after {len(pairs)}, expected pairs from 1 in order")
        while len(pairs) < pair:
            pairs.append((set(), set()))
        if first == 1 and 0 in (source, target):
            continue
        link = _from_zero((source, target), first, f"{name}:{number}: found '{row.strip()}'")
        pairs[-1][1].add(link)
        if match[4] != "P":
            pairs[-1][0].add(link)
    return [GoldAlignment(frozenset(sure), frozenset(possible)) for sure, possible in pairs]


def swap_direction(links: Iterable[Link]) -> Links:
    return frozenset((target, source) for source, target in links)


class AlignmentScore(NamedTuple):
    """The counts of a corpus, in the symbols of Och and Ney (2003), and its scores (equations 18 and 19)."""

    segments: int
    predicted: int  # |A|
    sure: int  # |S|
    predicted_sure: int  # |A ∩ S|
    predicted_possible: int  # |A ∩ P|
    note: str = ""  # about a gold file that seems to count words otherwise

    @property
    def error_rate(self) -> float:
        """1 − (|A∩S| + |A∩P|) / (|A| + |S|); without possible links it is 1 − F₁."""
        size = self.predicted + self.sure
        return 1 - (self.predicted_sure + self.predicted_possible) / size if size else 0.0

    def as_dict(self) -> dict[str, float | int]:
        """Fractions and counts for JSON. Precision is 1 without predicted links, recall is 1 without sure ones."""
        return {
            "aer": self.error_rate,
            "precision": self.predicted_possible / self.predicted if self.predicted else 1.0,
            "recall": self.predicted_sure / self.sure if self.sure else 1.0,
            "links": self.predicted,
            "sure": self.sure,
            "segments": self.segments,
        }


def alignment_score(predicted: Sequence[Iterable[Link]], gold: Sequence[GoldAlignment]) -> AlignmentScore:
    if len(predicted) != len(gold):
        raise DataError(f"found {len(predicted):,} alignments, expected {len(gold):,} as in the gold alignments")
    pairs = [(frozenset(links), truth) for links, truth in zip(predicted, gold, strict=True)]
    return AlignmentScore(
        len(pairs),
        sum(len(links) for links, _ in pairs),
        sum(len(truth.sure) for _, truth in pairs),
        sum(len(links & truth.sure) for links, truth in pairs),
        sum(len(links & truth.possible) for links, truth in pairs),
    )
