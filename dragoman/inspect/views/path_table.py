"""A table of dynamic programming with back-pointers, as views show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class PathTable:
    """A table of best scores, where each cell came from, and the cells of the best path."""

    scores: Tensor  # (rows, columns): row = state, column = time
    back: list[list[int]] | None  # back[column][row]: the row before, −1 where there is none
    path: list[tuple[int, int]]  # (row, column) from the first column to the last
    end: Tensor | None = None  # (rows,) the score with the step to the end, −∞ where no path may end


def traced(columns: list[Tensor], back: list[list[int]], end: Tensor) -> PathTable:
    """The table with the path that ends best."""
    row = int(end.argmax())
    path = [(row, len(columns) - 1)]
    for column in range(len(columns) - 1, 0, -1):
        row = back[column][row]
        path.append((row, column - 1))
    return PathTable(torch.stack(columns, 1), back, path[::-1], end)


def table_data(
    name: str, about: str, table: PathTable, rows: list[str], columns: list[str], *, summed: bool = False
) -> dict[str, Any]:
    """A table of dynamic programming; with `summed` its cells add up all paths to them, in place of the best one."""
    end = None if table.end is None else table.end.float()
    return {
        "name": name, "about": about, "scores": table.scores.float(), "path": table.path, "back": table.back,
        "end": end, "rows": rows, "columns": columns, "summed": summed,
    }  # fmt: skip
