"""Word alignments against hand-made ones (FIELD J3): precision, recall and alignment error rate, Och & Ney 2003."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dragoman.errors import DataError

Link = tuple[int, int]  # word of the source, word of the target, counted from 0
Links = frozenset[Link]

_PHARAOH = re.compile(r"(\d+)([-p?])(\d+)(?:[:/][\d.eE+-]+)?")  # some tools add a probability
_NUMBERED = re.compile(r"\s*(\d+)\s+(\d+)\s+(\d+)(?:\s+([SP]))?(?:\s+[\d.]+)?\s*")  # one link a line (NAACL 2003)


class GoldAlignment(NamedTuple):
    """What people drew for one pair: links that must be found, and links that may be."""

    sure: Links
    possible: Links  # the sure ones included


def links_text(links: Iterable[Link]) -> str:
    """Links as text, "0-0 1-2", in the order of the source."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_alignment(line: str, place: str = "alignment", first: int = 0) -> GoldAlignment:
    """The links of a line such as "0-0 1p2": `-` is sure, `p` or `?` possible; `first` is the number of word one."""
    sure, possible = set[Link](), set[Link]()
    for token in line.split():
        match = _PHARAOH.fullmatch(token)
        if not match:
            raise DataError(f"{place}: found '{token}', expected links such as 0-0 (sure) or 1p2 (possible)")
        link = _counted((int(match[1]), int(match[3])), first, f"{place}: found '{token}'")
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return GoldAlignment(frozenset(sure), frozenset(possible))


def _counted(link: Link, first: int, found: str) -> Link:
    if min(link) < first:
        raise DataError(f"{found}, expected words counted from {first}")
    return link[0] - first, link[1] - first


def read_alignments(lines: Iterable[str], name: str = "alignment", first: int | None = None) -> list[GoldAlignment]:
    """The links of every pair: one line a pair ("0-0 1p2"), or one line a link ("0001 1 2 S", sorted by pair).

    `first` is the number of word one: unless told 0 where a line is a pair, and 1 where a line is a link.
    """
    rows = list(lines)
    numbered = [_NUMBERED.fullmatch(row) for row in rows if row.strip()]
    if numbered and all(numbered):
        return _from_numbered(rows, name, 1 if first is None else first)
    return [parse_alignment(row, f"{name}:{number}", first or 0) for number, row in enumerate(rows, 1)]


def _from_numbered(rows: Sequence[str], name: str, first: int) -> list[GoldAlignment]:
    """Pairs are numbered from 1, and one without a link has no line; a link with word 0 says: aligned to nothing."""
    found: list[tuple[set[Link], set[Link]]] = []
    for number, row in enumerate(rows, 1):
        match = _NUMBERED.fullmatch(row)
        if not match:
            continue
        pair, source, target = (int(part) for part in match.groups()[:3])
        if pair < max(1, len(found)):
            raise DataError(f"{name}:{number}: found pair {pair} after {len(found)}, expected pairs from 1 in order")
        while len(found) < pair:
            found.append((set(), set()))
        if first == 1 and 0 in (source, target):
            continue
        link = _counted((source, target), first, f"{name}:{number}: found '{row.strip()}'")
        found[-1][1].add(link)
        if match[4] != "P":
            found[-1][0].add(link)
    return [GoldAlignment(frozenset(sure), frozenset(possible)) for sure, possible in found]


def swap_direction(links: Iterable[Link]) -> Links:
    """The same links seen from the target."""
    return frozenset((target, source) for source, target in links)


class LinkCounts(NamedTuple):
    """What one pair adds to the scores."""

    found: int
    sure: int
    found_sure: int
    found_possible: int


@dataclass(frozen=True)
class AlignmentScore:
    """Scores of a whole corpus from the counts of its pairs (Och & Ney 2003, equations 18 and 19)."""

    segments: tuple[LinkCounts, ...]

    def _total(self, name: str) -> int:
        return sum(getattr(one, name) for one in self.segments)

    @property
    def precision(self) -> float:
        """Share of the found links that are possible; 1 where nothing was found."""
        return self._total("found_possible") / found if (found := self._total("found")) else 1.0

    @property
    def recall(self) -> float:
        """Share of the sure links that were found; 1 where there are none."""
        return self._total("found_sure") / sure if (sure := self._total("sure")) else 1.0

    @property
    def error_rate(self) -> float:
        """1 − (|A∩S| + |A∩P|) / (|A| + |S|); without possible links it is 1 − F₁."""
        size = self._total("found") + self._total("sure")
        return 1 - (self._total("found_sure") + self._total("found_possible")) / size if size else 0.0

    def as_dict(self) -> dict[str, float | int]:
        """Names and values, fractions as such."""
        return {
            "aer": self.error_rate,
            "precision": self.precision,
            "recall": self.recall,
            "links": self._total("found"),
            "sure": self._total("sure"),
            "segments": len(self.segments),
        }


def alignment_score(found: Sequence[Iterable[Link]], gold: Sequence[GoldAlignment]) -> AlignmentScore:
    """The score of found links against hand-made ones, pair by pair."""
    if len(found) != len(gold):
        raise DataError(f"found {len(found):,} alignments, expected {len(gold):,} as in the hand-made ones")
    return AlignmentScore(tuple(_counts(frozenset(links), truth) for links, truth in zip(found, gold, strict=True)))


def _counts(links: Links, truth: GoldAlignment) -> LinkCounts:
    return LinkCounts(len(links), len(truth.sure), len(links & truth.sure), len(links & truth.possible))


# --- two directions into one


def _around(link: Link) -> Iterator[Link]:
    source, target = link
    for step in ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)):
        yield source + step[0], target + step[1]


def grow_diag(forward: Links, backward: Links, *, final: bool = False) -> Links:
    """Grow-diag (Koehn et al. 2003): from the intersection to neighbours in the union that align a new word.

    `final` adds, from either direction, links whose words are both still without any (grow-diag-final-and).
    """
    union, links = forward | backward, set(forward & backward)
    sources, targets = {link[0] for link in links}, {link[1] for link in links}

    def add(link: Link) -> None:
        links.add(link)
        sources.add(link[0])
        targets.add(link[1])

    size = -1
    while size < len(links):
        size = len(links)
        for link in sorted(union, key=lambda link: link[::-1]):
            for near in _around(link) if link in links else ():
                if near in union and (near[0] not in sources or near[1] not in targets):
                    add(near)
    for link in [*sorted(forward), *sorted(backward)] if final else []:
        if link[0] not in sources and link[1] not in targets:
            add(link)
    return frozenset(links)


SYMMETRIZATIONS: dict[str, Callable[[Links, Links], Links]] = {
    "intersection": lambda forward, backward: forward & backward,
    "union": lambda forward, backward: forward | backward,
    "grow-diag": grow_diag,
    "grow-diag-final-and": lambda forward, backward: grow_diag(forward, backward, final=True),
}
