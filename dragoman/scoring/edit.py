"""Edit distance: fast as a number, in full as an alignment with its table."""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["equal", "substitute", "insert", "delete"]

_MARKS: dict[Kind, str] = {"equal": " ", "substitute": "S", "insert": "I", "delete": "D"}
_GAP = "*"


def edit_distance(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """The least number of substitutions, insertions and deletions that turn one sequence into the other.

    Bit-parallel (Myers 1999, in the form of Hyyrö 2003): one column of the table is held as two integers, the
    places where it rises and where it falls by one, so a column costs a handful of big-integer operations.
    """
    # The loop runs over the shorter sequence: a wider integer is far cheaper than one more turn in Python.
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)

    start, stop = 0, len(shorter)
    while start < stop and longer[start] == shorter[start]:
        start += 1
    surplus = len(longer) - len(shorter)
    while stop > start and longer[stop + surplus - 1] == shorter[stop - 1]:
        stop -= 1
    longer, shorter = longer[start : stop + surplus], shorter[start:stop]
    if not shorter:
        return len(longer)

    places: dict[Hashable, int] = dict.fromkeys(shorter, 0)
    for index, symbol in enumerate(longer):
        if symbol in places:
            places[symbol] |= 1 << index

    mask = (1 << len(longer)) - 1
    rises, falls = mask, 0
    for symbol in shorter:
        matches = places[symbol]
        diagonal = (((matches & rises) + rises) ^ rises) | matches | falls
        across_rises = ((falls | ~(diagonal | rises)) << 1) | 1
        across_falls = (diagonal & rises) << 1
        rises = (across_falls | ~(diagonal | across_rises)) & mask
        # No mask: a carry past the top needs a rise there, and then across_rises has no bit to meet it.
        falls = across_rises & diagonal
    # The last column starts at len(shorter) and climbs to the distance, so no running score is needed.
    return len(shorter) + rises.bit_count() - falls.bit_count()


class EditOperation(NamedTuple):
    """One step of an alignment; the side that takes no part in it (insert: left, delete: right) is None."""

    kind: Kind
    left: Hashable
    right: Hashable


@dataclass(frozen=True)
class EditAlignment:
    """The cheapest way from left to right, with the whole table it was read from.

    `table[i][j]` is the cost of turning the first i symbols of left into the first j of right.
    """

    table: list[list[int]]
    operations: tuple[EditOperation, ...]
    cost: int

    @property
    def substitutions(self) -> int:
        """How many symbols of left were replaced by another."""
        return self._count("substitute")

    @property
    def insertions(self) -> int:
        """How many symbols stand only in right."""
        return self._count("insert")

    @property
    def deletions(self) -> int:
        """How many symbols stand only in left."""
        return self._count("delete")

    @property
    def matches(self) -> int:
        """How many symbols are the same on both sides."""
        return self._count("equal")

    @property
    def edits(self) -> int:
        """How many symbols were replaced, inserted or left out, whatever each costs."""
        return len(self.operations) - self.matches

    @property
    def left(self) -> tuple[Hashable, ...]:
        """What the alignment starts from."""
        return tuple(operation.left for operation in self.operations if operation.kind != "insert")

    @property
    def right(self) -> tuple[Hashable, ...]:
        """What the alignment leads to."""
        return tuple(operation.right for operation in self.operations if operation.kind != "delete")

    @property
    def path(self) -> tuple[tuple[int, int], ...]:
        """The cells (row, column) of the table that the alignment goes through, from corner to corner."""
        cells = [(0, 0)]
        for kind, _, _ in self.operations:
            row, column = cells[-1]
            cells.append((row + (kind != "insert"), column + (kind != "delete")))
        return tuple(cells)

    def render_table(self) -> str:
        """The whole table, left down and right across, with the cells of the path in brackets."""
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
        """The two rows set one above the other, gaps as '*', and a third row that marks S, I and D."""
        rows: tuple[list[str], list[str], list[str]] = ([], [], [])
        for kind, left, right in self.operations:
            above = _GAP if kind == "insert" else printable(left)
            below = _GAP if kind == "delete" else printable(right)
            cells = (above, below, _MARKS[kind])
            width = max(_width(cell) for cell in cells)
            for row, cell in zip(rows, cells, strict=True):
                row.append(cell + " " * (width - _width(cell)))
        return "\n".join(" ".join(row).rstrip() for row in rows)

    def _count(self, kind: Kind) -> int:
        return sum(operation.kind == kind for operation in self.operations)


def align_edits(
    left: Sequence[Hashable],
    right: Sequence[Hashable],
    *,
    substitution: int = 1,
    insertion: int = 1,
    deletion: int = 1,
) -> EditAlignment:
    """The cheapest alignment of two sequences by dynamic programming (Wagner and Fischer 1974).

    Of several equally cheap alignments it is always the same one that is given: read from the end, a pair
    (equal or substituted) goes before a deletion, and a deletion before an insertion.
    """
    table = [[column * insertion for column in range(len(right) + 1)]]
    for above, symbol in enumerate(left):
        before = table[above]
        row = [before[0] + deletion]
        for column, other in enumerate(right):
            paired = before[column] + (0 if symbol == other else substitution)
            row.append(min(paired, before[column + 1] + deletion, row[column] + insertion))
        table.append(row)

    operations: list[EditOperation] = []
    i, j = len(left), len(right)
    while i or j:
        cost = table[i][j]
        if i and j:
            same = left[i - 1] == right[j - 1]
            if cost == table[i - 1][j - 1] + (0 if same else substitution):
                operations.append(EditOperation("equal" if same else "substitute", left[i - 1], right[j - 1]))
                i, j = i - 1, j - 1
                continue
        if i and cost == table[i - 1][j] + deletion:
            operations.append(EditOperation("delete", left[i - 1], None))
            i -= 1
        else:
            operations.append(EditOperation("insert", None, right[j - 1]))
            j -= 1
    return EditAlignment(table, tuple(reversed(operations)), table[-1][-1])


def printable(symbol: Hashable) -> str:
    """A symbol as it can stand in a cell: spaces and control characters get a visible form."""
    # A line break or a bare space in a cell would pull the rows apart or vanish.
    return "".join(
        "␣" if character == " " else character if character.isprintable() else ascii(character)[1:-1]
        for character in str(symbol)
    )


def _width(text: str) -> int:
    """Columns a terminal gives the text: two for wide East Asian characters, none for combining marks."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )
