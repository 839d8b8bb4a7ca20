"""Dynamic programming tables with back-pointers: Viterbi over a CRF or an HMM, and the CTC lattice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.classical.rows import Floats
from dragoman.data.tokenizers.base import PAD
from dragoman.layers.crf import LinearChainCRF
from dragoman.layers.ctc import with_blanks


@dataclass(frozen=True)
class PathTable:
    """A table of best scores, where each cell came from, and the cells of the best path."""

    scores: Tensor  # (rows, columns): row = state, column = time
    back: list[list[int]] | None  # back[column][row]: the row before, −1 where there is none
    path: list[tuple[int, int]]  # (row, column) from the first column to the last


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
    return _traced(columns, back, int((best + chain.last).argmax()))


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


def _traced(columns: list[Tensor], back: list[list[int]], row: int) -> PathTable:
    """The table with the path that ends in a row of the last column."""
    path = [(row, len(columns) - 1)]
    for column in range(len(columns) - 1, 0, -1):
        row = back[column][row]
        path.append((row, column - 1))
    return PathTable(torch.stack(columns, 1), back, path[::-1])


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
    last = len(states) - 1
    return _traced(columns, back, last if last == 0 or best[last] >= best[last - 1] else last - 1)
