"""Edit distance, and edit alignments with their dynamic programming table."""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

EditKind = Literal["equal", "substitute", "insert", "delete"]

MARKS: dict[EditKind, str] = {"equal": " ", "substitute": "S", "insert": "I", "delete": "D"}
_GAP = "*"


def edit_distance(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Levenshtein distance: the fewest substitutions, insertions and deletions from one sequence to the other."""
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError:  # a machine where nothing can be installed trains all the same, and validates more slowly
        return align_edits(left, right).cost
    return Levenshtein.distance(left, right)


def edit_distances(lefts: Sequence[Sequence[Hashable]], rights: Sequence[Sequence[Hashable]]) -> NDArray[np.int32]:
    """The Levenshtein distance of each of the first to each of the others: (L, R)."""
    try:
        from rapidfuzz.distance import Levenshtein
        from rapidfuzz.process import cdist
    except ImportError:  # see edit_distance
        rows = [[edit_distance(left, right) for right in rights] for left in lefts]
        return np.array(rows, dtype=np.int32).reshape(len(lefts), len(rights))
    return cdist(lefts, rights, scorer=Levenshtein.distance, dtype=np.int32)


def common_length(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Length of the longest common subsequence."""
    try:
        from rapidfuzz.distance import LCSseq
    except ImportError:  # see edit_distance
        return (len(left) + len(right) - align_edits(left, right, substitution=2).cost) // 2
    return LCSseq.similarity(left, right)


class EditOperation(NamedTuple):
    """One step of an edit alignment; an insertion has no left symbol (None), a deletion no right one."""

    kind: EditKind
    left: Hashable
    right: Hashable


@dataclass(frozen=True)
class EditAlignment:
    """A cheapest edit alignment of two sequences, with its dynamic programming table.

    `table[i][j]` is the cost of turning the first i symbols of left into the first j of right.
    """

    table: list[list[int]]
    operations: tuple[EditOperation, ...]
    cost: int

    @property
    def substitutions(self) -> int:
        return self._count("substitute")

    @property
    def insertions(self) -> int:
        """The number of symbols that only right has."""
        return self._count("insert")

    @property
    def deletions(self) -> int:
        """The number of symbols that only left has."""
        return self._count("delete")

    @property
    def matches(self) -> int:
        return self._count("equal")

    @property
    def left(self) -> tuple[Hashable, ...]:
        return tuple(operation.left for operation in self.operations if operation.kind != "insert")

    @property
    def right(self) -> tuple[Hashable, ...]:
        return tuple(operation.right for operation in self.operations if operation.kind != "delete")

    @property
    def path(self) -> tuple[tuple[int, int], ...]:
        """The cells (row, column) of the table on the alignment's path, from corner to corner."""
        cells = [(0, 0)]
        for kind, _, _ in self.operations:
            row, column = cells[-1]
            cells.append((row + (kind != "insert"), column + (kind != "delete")))
        return tuple(cells)

    def render_table(self) -> str:
        """The table as text: left sequence down, right sequence across, cells of the path in brackets."""
        path = set(self.path)
        heads = ["", *map(printable, self.right)]
        body = [
            [head, *(f"[{cost}]" if (row, column) in path else f"{cost} " for column, cost in enumerate(costs))]
            for row, (head, costs) in enumerate(zip(["", *map(printable, self.left)], self.table, strict=True))
        ]
        rows = [["", *(f"{head} " for head in heads)], *body]
        widths = [max(_width(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            " ".join(" " * (width - _width(cell)) + cell for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )

    def render(self) -> str:
        """Both sequences as aligned rows of text, gaps as '*', and a third row that marks S, I and D."""
        rows: tuple[list[str], list[str], list[str]] = ([], [], [])
        for kind, left, right in self.operations:
            above = _GAP if kind == "insert" else printable(left)
            below = _GAP if kind == "delete" else printable(right)
            cells = (above, below, MARKS[kind])
            width = max(_width(cell) for cell in cells)
            for row, cell in zip(rows, cells, strict=True):
                row.append(cell + " " * (width - _width(cell)))
        return "\n".join(" ".join(row).rstrip() for row in rows)

    def _count(self, kind: EditKind) -> int:
        return sum(operation.kind == kind for operation in self.operations)


def align_edits(left: Sequence[Hashable], right: Sequence[Hashable], *, substitution: int = 1) -> EditAlignment:
    """A cheapest edit alignment by dynamic programming (Wagner and Fischer 1974).

    Ties are broken from the end: a match or substitution before a deletion, a deletion before an insertion.
    """
    return next(_alignments(left, right, substitution))


def all_edit_alignments(
    left: Sequence[Hashable], right: Sequence[Hashable], *, substitution: int = 1, limit: int = 100
) -> list[EditAlignment]:
    """All cheapest edit alignments, the one of `align_edits` first; at most `limit`, since they may be very many."""
    return list(islice(_alignments(left, right, substitution), limit))


def _alignments(left: Sequence[Hashable], right: Sequence[Hashable], substitution: int) -> Iterator[EditAlignment]:
    table = [list(range(len(right) + 1))]
    for symbol in left:
        previous = table[-1]
        row = [previous[0] + 1]
        for column, other in enumerate(right):
            paired = previous[column] + (0 if symbol == other else substitution)
            row.append(min(paired, previous[column + 1] + 1, row[column] + 1))
        table.append(row)

    # Paths back from the last cell. The operations behind a cell are a linked list, which branches share.
    paths: list[tuple[int, int, Any]] = [(len(left), len(right), None)]
    while paths:
        i, j, behind = paths.pop()
        if not (i or j):
            operations = list[EditOperation]()
            while behind is not None:
                operation, behind = behind
                operations.append(operation)
            yield EditAlignment(table, tuple(operations), table[-1][-1])
            continue
        cost = table[i][j]  # the last path pushed is tried first
        if j and cost == table[i][j - 1] + 1:
            paths.append((i, j - 1, (EditOperation("insert", None, right[j - 1]), behind)))
        if i and cost == table[i - 1][j] + 1:
            paths.append((i - 1, j, (EditOperation("delete", left[i - 1], None), behind)))
        if i and j:
            same = left[i - 1] == right[j - 1]
            if cost == table[i - 1][j - 1] + (0 if same else substitution):
                operation = EditOperation("equal" if same else "substitute", left[i - 1], right[j - 1])
                paths.append((i - 1, j - 1, (operation, behind)))


def printable(symbol: Hashable) -> str:
    """A symbol as text for a table cell; spaces and control characters get a visible form."""
    return "".join(
        "␣" if character == " " else character if character.isprintable() else ascii(character)[1:-1]
        for character in str(symbol)
    )


def _width(text: str) -> int:
    """The columns that a text takes in a terminal: two for wide East Asian characters, none for combining marks."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )
