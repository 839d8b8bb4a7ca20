"""CTC step by step: the raw path, how it collapses, and the sum over all paths of a text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from dragoman.analysis.subject import Subject
from dragoman.analysis.tables import PathTable, ctc_forward, ctc_table
from dragoman.data.tokenizers.base import PAD
from dragoman.inference.predictor import Predictor
from dragoman.models.contracts import CTCEmissions
from dragoman.models.traits import decodes
from dragoman.reports.view import View, table_data

BLANK = "blank"
MAX_CELLS = 200_000  # of a lattice


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
    fits = len(logs) >= len(ids) and (2 * len(ids) + 1) * len(logs) <= MAX_CELLS
    return ids if fits else None


@torch.no_grad()
def ctc_tables(subject: Subject) -> Iterator[dict[str, Any]]:
    """The lattice of best paths, and the forward variables."""
    loaded = subject.loaded
    if not isinstance(loaded, Predictor) or (logs := ctc_log_probabilities(subject)) is None:
        return
    if (ids := _labels(subject, logs)) is None:
        return
    rows = [BLANK]
    for piece in loaded.target_tokenizer.pieces(ids):
        rows += [piece, BLANK]
    columns, best = [str(number) for number in range(1, len(logs) + 1)], ctc_table(logs, ids)
    yield table_data("CTC lattice", "best log-probability up to here", best, rows, columns)
    summed = PathTable(ctc_forward(logs, ids)[0], None, best.path)
    about = "log of the summed probability of all paths up to here; the best single path is outlined"
    yield table_data("CTC forward variables", about, summed, rows, columns, summed=True)


@torch.no_grad()
def ctc_view(subject: Subject, beam: int | None) -> Iterator[View]:
    loaded = subject.loaded
    if not isinstance(loaded, Predictor) or (logs := ctc_log_probabilities(subject)) is None:
        return
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
    yield View(
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
