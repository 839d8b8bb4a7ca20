"""Dynamic programming tables with back-pointers: Viterbi over a CRF or an HMM, and the CTC lattice."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.classical import Floats, HMMTagger
from dragoman.inference import Completer, Predictor, ignore_unknown
from dragoman.inspect.views.ctc import ctc_tables
from dragoman.inspect.views.figures import INK, RED, chosen, heat
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
    return traced(columns, back, int((best + chain.last).argmax()))


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
    before, tag = np.unravel_index(int((best + transitions[:, :tags, tags]).argmax()), best.shape)
    path = [(int(tag), len(pairs) - 1)]
    for word in range(len(pairs) - 2, -1, -1):
        before, tag = origins[word][before, tag], before
        path.append((int(tag), word))
    back = [[-1] * tags, *(table.argmax(0).tolist() for table in pairs[1:])]
    return PathTable(torch.from_numpy(np.stack([table.max(0) for table in pairs], 1)), back, path[::-1])


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
    table = chosen(view.data["tables"], layer)
    values = table["scores"].clone()
    finite = values[values.isfinite()]
    values = values.masked_fill(~values.isfinite(), float(finite.min()))
    low, high = float(values.min()), float(values.max())
    drawing, axes = heat((values - low) / max(high - low, 1e-9) * 0.8, table["rows"], table["columns"])
    if values.numel() <= 600:
        for row in range(values.shape[0]):
            for column in range(values.shape[1]):
                axes.text(column, row, f"{float(values[row, column]):.3g}", ha="center", va="center", fontsize=6)
    path = np.asarray(table["path"])
    axes.plot(path[:, 1], path[:, 0], color=RED, marker="o", ms=3, lw=1.5)
    axes.set_title(f"{table['name']}: {table['about']}", fontsize=10, color=INK)
    return drawing
