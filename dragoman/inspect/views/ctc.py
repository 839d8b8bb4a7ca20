"""CTC step by step: the raw path, how it collapses, and the sum over all paths of a text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.data.tokenizers import PAD
from dragoman.inference import Predictor
from dragoman.inspect.views.figures import BLUE, GREY, MAX_INCHES, new_figure, one_line_labels, suptitle
from dragoman.inspect.views.path_table import PathTable, table_data, traced
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View
from dragoman.models import CTCEmissions, decodes
from dragoman.models.layers import with_blanks

BLANK = "blank"
MAX_CELLS = 200_000  # of a lattice


@torch.no_grad()
def ctc_forward(log_probabilities: Tensor, labels: list[int]) -> tuple[Tensor, int]:
    """The forward variables (states, T) of CTC, and how many paths the labels have.

    Each cell is the log of the summed probability of all paths to it (Graves et al. 2006, eq. 6 to 8); the last two
    states of the last column add up to the probability of the labels.
    """
    symbols, skips = with_blanks(torch.tensor(labels, dtype=torch.long), PAD)
    skips = skips[: len(symbols)]
    emitted = log_probabilities.double()[:, symbols]  # (T, states)
    reached = torch.full((len(symbols),), float("-inf"), dtype=torch.float64)
    reached[0] = 0.0
    counts = [1] + [0] * (len(symbols) - 1)  # Python's integers: there are more paths than 64 bits can count
    columns = []
    for row in emitted:
        one = F.pad(reached[:-1], (1, 0), value=float("-inf"))
        two = F.pad(reached[:-2], (2, 0), value=float("-inf"))[: len(symbols)].masked_fill(~skips, float("-inf"))
        reached = torch.stack([reached, one, two]).logsumexp(0) + row
        columns.append(reached)
        counts = [
            counts[state] + (counts[state - 1] if state else 0) + (counts[state - 2] if skips[state] else 0)
            for state in range(len(symbols))
        ]
    return torch.stack(columns, 1), sum(counts[-2:])


@torch.no_grad()
def ctc_table(log_probabilities: Tensor, labels: list[int]) -> PathTable:
    """The best CTC alignment of labels to positions (T, V): states are blank, label 1, blank, …, label n, blank.

    A step stays, moves to the next state, or skips a blank between two different labels (Graves et al. 2006).
    """
    states = [PAD]
    for label in labels:
        states += [label, PAD]
    emitted = log_probabilities[:, states]  # (T, states)
    lowest = float("-inf")
    best = torch.full((len(states),), lowest, dtype=emitted.dtype)
    best[0] = emitted[0, 0]
    if len(states) > 1:
        best[1] = emitted[0, 1]
    columns, back = [best], [[-1] * len(states)]
    for row in emitted[1:]:
        origins = []
        values = torch.full_like(best, lowest)
        for state, label in enumerate(states):
            before = [state] if state == 0 else [state, state - 1]
            if state > 1 and label != PAD and label != states[state - 2]:
                before.append(state - 2)
            origin = max(before, key=lambda state: float(best[state]))
            origins.append(origin)
            values[state] = best[origin] + row[state]
        best = values
        columns.append(best)
        back.append(origins)
    return traced(columns, back, _ended(best))


def _ended(last: Tensor) -> Tensor:
    """The last column of a lattice, of which only the last label and the blank behind it end a path."""
    return last.masked_fill(torch.arange(len(last)) < len(last) - 2, float("-inf"))


def ctc_log_probabilities(subject: Subject) -> Tensor | None:
    """The log-probabilities of every position (P, V); None: the model has no CTC."""
    if decodes(subject.model) != "parallel":
        return None
    emitted = subject.model.emissions(subject.batch, subject.batch.source.mask.sum(1), 1)
    if not isinstance(emitted, CTCEmissions):
        return None
    return emitted.log_probabilities[0, : int(emitted.lengths[0])].float().cpu()


def _labels(subject: Subject, logs: Tensor) -> list[int] | None:
    """The target without <eos>; None: it is longer than all paths, or the lattice is too large to show."""
    ids: list[int] = subject.batch.target[0, :-1].tolist()
    shortest = len(ids) + sum(one == other for one, other in pairwise(ids))  # equal neighbours need a blank between
    fits = len(logs) >= shortest and (2 * len(ids) + 1) * len(logs) <= MAX_CELLS
    return ids if fits else None


@torch.no_grad()
def ctc_tables(subject: Subject) -> Iterator[dict[str, Any]]:
    """The lattice of best paths, and the forward variables."""
    loaded = subject.loaded
    if not isinstance(loaded, Predictor) or (logs := ctc_log_probabilities(subject)) is None:
        return None
    if (ids := _labels(subject, logs)) is None:
        return None
    rows = [BLANK]
    for piece in loaded.target_tokenizer.pieces(ids):
        rows += [piece, BLANK]
    columns, best = [str(number) for number in range(1, len(logs) + 1)], ctc_table(logs, ids)
    yield table_data("CTC lattice", "best log-probability up to here", best, rows, columns)
    forward = ctc_forward(logs, ids)[0]
    summed = PathTable(forward, None, best.path, _ended(forward[:, -1]))
    about = "log of the summed probability of all paths up to here; the best single path is outlined"
    yield table_data("CTC forward variables", about, summed, rows, columns, summed=True)


@torch.no_grad()
def ctc_view(subject: Subject) -> View | None:
    loaded = subject.loaded
    if not isinstance(loaded, Predictor) or (logs := ctc_log_probabilities(subject)) is None:
        return None
    scores, path = logs.max(1)
    names = [BLANK if token == PAD else loaded.target_tokenizer.pieces([token])[0] for token in path.tolist()]
    merged: list[dict[str, Any]] = []
    for _, group in groupby(range(len(names)), key=lambda place: int(path[place])):
        places = list(group)
        merged.append({"piece": names[places[0]], "first": places[0], "last": places[-1]})
    sums = None
    if (ids := _labels(subject, logs)) is not None:
        forward, paths = ctc_forward(logs, ids)
        best = ctc_table(logs.double(), ids).scores
        sums = {
            "log_probability": min(
                0.0, float(forward[-2:, -1].logsumexp(0))
            ),  # rounded softmax adds up to a little over 1
            "best_path": float(best[-2:, -1].max()),
            "paths": str(paths),  # more than a float can hold exactly
        }
    return View(
        "ctc",
        "CTC",
        "CTC writes one symbol or the blank at every position. Merging repeats and then dropping blanks gives the "
        "text. Many paths give the same text: its probability is the sum over all of them, which the forward variables "
        "add up column by column (see Tables).",
        {
            "path": names, "probabilities": scores.exp(), "merged": merged, "blank": BLANK,
            "text": [one["piece"] for one in merged if one["piece"] != BLANK], "target": subject.target.as_dict(),
            "sums": sums,
        },
    )  # fmt: skip


def draw_ctc(view: View, layer: str | None) -> Any:
    """The symbol of every position by its probability, blanks in grey, over the text that they collapse to."""
    path, blank = view.data["path"], view.data["blank"]
    drawing = new_figure(min(MAX_INCHES, max(7.0, 1 + 0.28 * len(path))), 3.2)
    axes = drawing.subplots()
    colours = [GREY if symbol == blank else BLUE for symbol in path]
    axes.bar(range(len(path)), view.data["probabilities"].tolist(), color=colours)
    axes.set_xticks(range(len(path)), one_line_labels(["–" if symbol == blank else symbol for symbol in path]))
    axes.set(ylim=(0, 1), xlabel="symbol of each position (grey –: blank)", ylabel="probability of the symbol")
    axes.spines[["top", "right"]].set_visible(False)
    suptitle(drawing, f"collapsed: {' '.join(view.data['text'])}")
    return drawing
