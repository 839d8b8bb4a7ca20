"""Dynamic programming tables with back-pointers: Viterbi over a CRF or an HMM, and the CTC lattice."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.classical import Floats, HMMTagger
from dragoman.inference import Completer, Predictor, ignore_unknown
from dragoman.inspect.views.ctc import ctc_tables
from dragoman.inspect.views.figures import CELL, GREY, INK, MAX_INCHES, RED, chosen, draw_heat, new_figure, suptitle
from dragoman.inspect.views.path_table import PathTable, table_data, traced
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View
from dragoman.models import Tagger
from dragoman.models.layers import LinearChainCRF
from dragoman.scoring import align_edits


@torch.no_grad()
def viterbi_table(chain: LinearChainCRF, emissions: Tensor) -> PathTable:
    """Viterbi over emissions (W, K): the score of the best path that ends in each tag of each word."""
    best = chain.first + emissions[0]
    columns, back = [best], [[-1] * emissions.shape[1]]
    for scores in emissions[1:]:
        reached, origin = (best[:, None] + chain.transitions).max(0)
        best = reached + scores
        columns.append(best)
        back.append(origin.tolist())
    return traced(columns, back, best + chain.last)


def hmm_table(transitions: Floats, emissions: Floats) -> PathTable:
    """Viterbi of a trigram HMM over log-emissions (W, K); `back` is the tag before on the best path to a cell.

    A state is a pair of tags, of which a cell shows the best that ends in its tag. So the path is traced over pairs.
    """
    tags = emissions.shape[1]
    best = np.full((tags + 1, tags), -np.inf)  # (tag before, tag): the last tag before stands for the start
    best[tags] = transitions[tags, tags, :tags] + emissions[0]
    pairs, origins = [best], []
    for scores in emissions[1:]:
        reached = best[:, :, None] + transitions[:, :tags, :tags]  # (i, j, k)
        origins.append(reached.argmax(0))  # (j, k)
        best = np.concatenate([reached.max(0), np.full((1, tags), -np.inf)]) + scores
        pairs.append(best)
    ended = best + transitions[:, :tags, tags]
    before, tag = np.unravel_index(int(ended.argmax()), best.shape)
    path = [(int(tag), len(pairs) - 1)]
    for word in range(len(pairs) - 2, -1, -1):
        before, tag = origins[word][before, tag], before
        path.append((int(tag), word))
    back = [[-1] * tags, *(table.argmax(0).tolist() for table in pairs[1:])]
    scores, end = (torch.from_numpy(part) for part in (np.stack([table.max(0) for table in pairs], 1), ended.max(0)))
    return PathTable(scores, back, path[::-1], end)


@torch.no_grad()
def tables_view(subject: Subject) -> View | None:
    tables: list[dict[str, Any]] = []
    model, loaded = subject.model, subject.loaded
    if isinstance(model, HMMTagger):
        words = [label.rpartition("/")[0] for label in subject.target.tokens]
        path = hmm_table(model.transitions, model.lattice(*model.rows(subject.batch))[0][0])
        about = "log-probability of the best path that ends in this tag, up to a term that all paths share"
        tables.append(table_data("Viterbi", about, path, list(loaded.labels), words))
    if isinstance(model, Tagger) and model.chain is not None and not isinstance(loaded, Predictor | Completer):
        path = viterbi_table(model.chain, model.outputs(subject.batch)[0][0])
        words = [label.rpartition("/")[0] for label in subject.target.tokens]
        tables.append(
            table_data("Viterbi", "best score of a path that ends in this tag", path, list(loaded.labels), words)
        )
    tables += ctc_tables(subject)
    if subject.given and isinstance(loaded, Predictor) and subject.source is not None:
        outputs = loaded.stream([subject.source.text], engine="torch", split_long=False, on_unknown=ignore_unknown)
        output = next(outputs).text
        axis = subject.target
        by_word = len(axis.text.split()) > 1
        left, right = (text.split() if by_word else list(text) for text in (axis.text, output))
        edits = align_edits(left, right)
        about = f"cost of turning the target (down) into the output (across): {edits.cost}"
        path = PathTable(torch.tensor(edits.table), None, list(edits.path))
        tables.append(table_data("Edit distance", about, path, ["", *left], ["", *right]))
    if not tables:
        return None
    return View(
        "tables",
        "Tables",
        "Dynamic programming fills each cell from its neighbours and remembers which one it came from. Following "
        "these back-pointers from the last cell gives the best path, outlined here.",
        {"tables": tables},
    )


def draw_tables(view: View, layer: str | None) -> Any:
    """A number in every cell, the cells of the path in frames that lines join, and the scores at the end."""
    table = chosen(view.data["tables"], layer)
    values, columns, path = table["scores"].double(), [*table["columns"]], [*table["path"]]
    if table["end"] is not None:
        values, columns = torch.cat([values, table["end"].double()[:, None]], 1), [*columns, "end"]
        path.append((path[-1][0], values.shape[1] - 1))
    finite = values[values.isfinite()]
    low, high = float(finite.min()), float(finite.max())
    rows, across = values.shape
    numbers = values.numel() <= 600
    width = 1.2 + 0.08 * max(map(len, table["rows"])) + (0.5 if numbers else CELL) * across
    drawing = new_figure(min(MAX_INCHES, max(4.5, width)), min(MAX_INCHES, 1.8 + 0.34 * rows))
    axes = drawing.subplots()
    draw_heat(axes, 0.05 + 0.5 * (values - low) / max(high - low, 1e-9), table["rows"], columns)
    axes.set_facecolor(GREY)  # of cells that no path reaches
    for row, column in np.ndindex(rows, across) if numbers else ():
        text = score_text(float(values[row, column]), 2 if high - low > 0.5 else 4)
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=INK)
    if numbers and max(map(len, columns)) <= 5:  # cells with numbers have room
        for label in axes.get_xticklabels():
            label.set(rotation=0, ha="center", va="baseline", rotation_mode="default")
    half = 0.44
    for row, column in path:
        x, y = (column - half, column + half), (row - half, row + half)
        axes.plot((x[0], x[1], x[1], x[0], x[0]), (y[0], y[0], y[1], y[1], y[0]), color=RED, lw=1.6)
    for (row, column), (to_row, to_column) in pairwise(path):  # between the cells, not over their numbers
        ends = ((column + half, row), (to_column - half, to_row))
        ends = ends if to_column > column else ((column, row + half), (column, to_row - half))
        axes.plot(*zip(*ends, strict=True), color=RED, lw=1.6)
    suptitle(drawing, f"{table['name']}: {table['about']}", 10)
    return drawing


def score_text(value: float, digits: int) -> str:
    """A score; a cell that no path reaches has −∞. Costs of edits are whole."""
    if math.isinf(value):
        return "−∞" if value < 0 else "∞"
    text = f"{value:.{0 if value.is_integer() or abs(value) >= 100 else digits}f}"
    return text.replace("-", "−")
