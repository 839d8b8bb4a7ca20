"""What a worked calculation is: a record of numbers with the textbook's as defaults, its steps, and its results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from dragoman.base import DataError

Row: TypeAlias = tuple[float, ...]
Matrix: TypeAlias = tuple[Row, ...]
MAX_SYMBOLS = 200  # of a text, a series or a table that is worked out: more fill no page
TOLERANCE = 1e-3  # by which probabilities on paper may miss 1


@dataclass(frozen=True)
class Worked:
    """The steps of one calculation, and its numbers by name."""

    lines: tuple[str, ...]
    results: dict[str, Any]
    name: str = ""
    settings: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "settings": self.settings, "results": self.results}

    def __str__(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True)
class Calculation:
    """The numbers that a calculation begins with. The first line of its docstring says what it computes."""

    name: ClassVar[str]

    def work(self) -> Worked:
        raise NotImplementedError

    def problems(self) -> Iterator[str]:
        """Cross-field validation errors; see `dragoman.base.config.build`."""
        yield from ()


def figure(value: float, digits: int = 4) -> str:
    """A number as people write it: four significant digits at least, whole numbers whole."""
    value = float(value)
    if value.is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    text = f"{value:.{digits}g}"
    return f"{value:,.2f}" if abs(value) >= 10**digits else text.replace("e-0", "e-")


def listed(values: Iterable[float]) -> str:
    return ", ".join(map(figure, values))


def aligned(rows: Sequence[Sequence[object]]) -> list[str]:
    """Rows as lines of text: the first column to the left, numbers to the right."""
    cells = [[figure(cell) if isinstance(cell, int | float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = []
    for first, *others in cells:
        right = (cell.rjust(width + 2) for cell, width in zip(others, widths[1:], strict=True))
        lines.append((first.ljust(widths[0]) + "".join(right)).rstrip())
    return lines


def shape_problem(name: str, matrix: Matrix, rows: int | None, columns: int | None) -> Iterator[str]:
    """A message if a matrix has another number of rows or columns."""
    if rows is not None and len(matrix) != rows:
        yield f"{name}: found {len(matrix)} rows, expected {rows}"
    for number, row in enumerate(matrix):
        if len(row) != (len(matrix[0]) if columns is None else columns):
            expected = len(matrix[0]) if columns is None else columns
            yield f"{name}[{number}]: found {len(row)} numbers, expected {expected}"
            return


def probability_problem(name: str, row: Sequence[float]) -> Iterator[str]:
    """A message if numbers are no probabilities that sum to 1."""
    wrong = next((value for value in row if not 0 <= value <= 1), None)
    if wrong is not None:
        yield f"{name}: found {wrong:g}, expected probabilities from 0 to 1"
    elif abs(sum(row) - 1) > TOLERANCE:
        yield f"{name}: found probabilities with the sum {sum(row):.6g}, expected 1"


def size_problem(name: str, size: int, unit: str = "symbols", most: int = MAX_SYMBOLS) -> Iterator[str]:
    if not 0 < size <= most:
        yield f"{name}: found {size:,} {unit}, expected 1 to {most}"


def index_of(name: str, symbol: str, known: Sequence[str]) -> int:
    if symbol not in known:
        raise DataError(f"{name}: found {symbol!r}, expected one of {', '.join(known)}")
    return known.index(symbol)
