"""Hidden Markov models: forward, backward, Viterbi, posteriors, and Baum-Welch training (Rabiner 1989).

`second_order_*` work on batches of sentences with states as pairs of tags; `DiscreteHMM` is a first-order model of
symbols that can also learn without tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman.base import DataError
from dragoman.classical.rows import Bools, Floats, Ints

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

SUM_TOLERANCE = 1e-3  # of probabilities, which a person may round to three places

# --- second order: states are the last two tags. Tag K stands before the sentence, and after it.


def second_order_viterbi(emissions: Floats, transitions: Floats, mask: Bools) -> Ints:
    """The most probable tags (B, W) of log-emissions (B, W, K) with log-transitions (K+1, K+1, K+1); mask (B, W)."""
    rows, words, tags = emissions.shape
    scores = np.full((rows, tags + 1, tags), -np.inf)  # of (last but one, last)
    scores[:, tags] = transitions[tags, tags, :tags] + emissions[:, 0]
    back = np.zeros((words, rows, tags, tags), np.int64)
    for word in range(1, words):
        paths = scores[:, :, :, None] + transitions[:, :tags, :tags]  # (B, K+1, K, K)
        back[word] = paths.argmax(1)
        reached = paths.max(1) + emissions[:, word, None, :]
        new = np.concatenate([reached, np.full((rows, 1, tags), -np.inf)], 1)
        scores = np.where(mask[:, word, None, None], new, scores)
    final = scores + transitions[:, :tags, tags]
    lengths = mask.sum(1)
    out = np.zeros((rows, words), np.int64)
    for row in range(rows):
        before, last = divmod(int(final[row].argmax()), tags)
        for word in range(int(lengths[row]) - 1, -1, -1):
            out[row, word] = last
            if word:
                before, last = int(back[word, row, before, last]), before
    return out


def second_order_posteriors(emissions: Floats, transitions: Floats, mask: Bools) -> tuple[Floats, Floats]:
    """p(tag | sentence) (B, W, K) and the log-likelihood of each sentence (B,), by forward and backward passes."""
    rows, words, tags = emissions.shape
    chances = np.exp(transitions)
    top = emissions.max(2, keepdims=True)
    emitted = np.exp(emissions - top)  # (B, W, K)
    ahead = np.zeros((words, rows, tags + 1, tags))
    scales = np.ones((words, rows))
    for word in range(words):
        new = np.zeros((rows, tags + 1, tags))
        if word == 0:
            new[:, tags] = chances[tags, tags, :tags] * emitted[:, 0]
        else:
            moved = np.einsum("bij,ijk->bjk", ahead[word - 1], chances[:, :tags, :tags])
            new[:, :tags] = moved * emitted[:, word, None]
        total = np.maximum(new.sum((1, 2)), 1e-300)
        scales[word] = np.where(mask[:, word], total, 1.0)
        kept = ahead[word - 1] if word else new
        ahead[word] = np.where(mask[:, word, None, None], new / total[:, None, None], kept)
    ends = np.broadcast_to(chances[:, :tags, tags], (rows, tags + 1, tags))
    finish = np.maximum((ahead[-1] * ends).sum((1, 2)), 1e-300)  # (B,)
    behind = ends / finish[:, None, None]
    out = np.zeros((rows, words, tags))
    for word in range(words - 1, -1, -1):
        out[:, word] = (ahead[word] * behind).sum(1)
        if word:
            weighted = behind[:, :tags] * (emitted[:, word] / scales[word][:, None])[:, None]
            back = np.einsum("bjk,ijk->bij", weighted, chances[:, :tags, :tags])
            behind = np.where(mask[:, word, None, None], back, behind)
    logs = (np.log(scales.T) + top[:, :, 0]) * mask
    return out * mask[:, :, None], logs.sum(1) + np.log(finish)


def second_order_score(emissions: Floats, transitions: Floats, tags: Ints, mask: Bools) -> Floats:
    """The log-probability of words with given tags (B, W) together: (B,)."""
    rows, _, count = emissions.shape
    first = np.full((rows, 2), count)
    padded = np.concatenate([first, np.where(mask, tags, count)], 1)
    steps = transitions[padded[:, :-2], padded[:, 1:-1], padded[:, 2:]]
    steps = steps + np.take_along_axis(emissions, np.where(mask, tags, 0)[:, :, None], 2)[:, :, 0]
    lengths = mask.sum(1)
    last = transitions[padded[np.arange(rows), lengths], padded[np.arange(rows), lengths + 1], count]
    return np.asarray(np.where(mask, steps, 0.0).sum(1) + last)


# --- first order, over symbols


class DiscreteHMM:
    """p(first state), p(state | last state) and p(symbol | state); rows of symbols are independent.

    Probabilities and rows may be lists, arrays or tensors. A row has the number of a symbol for each step.
    """

    def __init__(self, start: ArrayLike, transitions: ArrayLike, emissions: ArrayLike) -> None:
        """Probabilities (K,), (K, K) and (K, V); DataError where shapes or sums are wrong."""
        self.start = distributions("start", start, 1)
        states = len(self.start)
        self.transitions = distributions("transitions", transitions, 2)
        self.emissions = distributions("emissions", emissions, 2)
        if self.transitions.shape != (states, states):
            raise DataError(f"transitions: found {shown(self.transitions)} numbers, expected {states}×{states}")
        if len(self.emissions) != states:
            raise DataError(f"emissions: found {len(self.emissions)} rows, expected one for each of {states} states")

    def symbols(self, row: ArrayLike) -> Ints:
        """A row of symbols as an array."""
        found, count = as_array("symbols", row), self.emissions.shape[1]
        if found.ndim != 1 or not len(found):
            raise DataError(f"symbols: found an array of {shown(found)}, expected a row of one symbol or more")
        wrong = found[~np.isin(found, np.arange(count))]
        if len(wrong):
            raise DataError(f"symbols: found {wrong[0]}, expected whole numbers from 0 to {count - 1}")
        return np.asarray(found, np.int64)

    def forward(self, row: ArrayLike) -> tuple[Floats, Floats]:
        """Scaled p(symbols up to t, state at t) (T, K), and the scale of every step (T,); their logs sum to log p."""
        row = self.symbols(row)
        ahead, scales = np.zeros((len(row), len(self.start))), np.zeros(len(row))
        for step, symbol in enumerate(row):
            before = self.start if step == 0 else ahead[step - 1] @ self.transitions
            ahead[step] = before * self.emissions[:, symbol]
            scales[step] = ahead[step].sum()
            ahead[step] /= scales[step] or 1.0
        return ahead, scales

    def backward(self, row: ArrayLike, scales: Floats) -> Floats:
        """Scaled p(symbols after t | state at t) (T, K)."""
        row = self.symbols(row)
        behind = np.ones((len(row), len(self.start)))
        for step in range(len(row) - 2, -1, -1):
            after = self.emissions[:, row[step + 1]] * behind[step + 1]
            behind[step] = self.transitions @ after / (scales[step + 1] or 1.0)
        return behind

    def log_likelihood(self, row: ArrayLike) -> float:
        with np.errstate(divide="ignore"):
            return float(np.log(self.forward(row)[1]).sum())

    def posteriors(self, row: ArrayLike) -> Floats:
        """p(state at t | all symbols) (T, K)."""
        ahead, scales = self.forward(row)
        return np.asarray(ahead * self.backward(row, scales))

    def viterbi(self, row: ArrayLike) -> tuple[list[int], float]:
        """The most probable states and the log-probability of them and the symbols together."""
        row = self.symbols(row)
        with np.errstate(divide="ignore"):
            start, moves, symbols = np.log(self.start), np.log(self.transitions), np.log(self.emissions)
        scores = start + symbols[:, row[0]]
        back = []
        for symbol in row[1:]:
            paths = scores[:, None] + moves
            back.append(paths.argmax(0))
            scores = paths.max(0) + symbols[:, symbol]
        state = int(scores.argmax())
        best = float(scores[state])
        states = [state]
        for pointers in reversed(back):
            states.append(int(pointers[states[-1]]))
        return states[::-1], best

    def baum_welch(self, rows: Sequence[ArrayLike]) -> tuple[DiscreteHMM, float]:
        """One iteration of EM: the new model, and the log-likelihood of the rows under this one, which never falls."""
        start, moves = np.zeros_like(self.start), np.zeros_like(self.transitions)
        symbols, total = np.zeros_like(self.emissions), 0.0
        for row in map(self.symbols, rows):
            ahead, scales = self.forward(row)
            behind = self.backward(row, scales)
            total += float(np.log(scales).sum())
            share = ahead * behind
            start += share[0]
            np.add.at(symbols.T, row, share)
            after = (self.emissions[:, row[1:]].T * behind[1:]) / scales[1:, None]  # (T−1, K)
            moves += ahead[:-1].T @ after * self.transitions

        def normalised(counts: Floats) -> Floats:
            sums = counts.sum(-1, keepdims=True)
            equal = np.full_like(counts, 1 / counts.shape[-1])
            return np.where(sums > 0, counts / np.where(sums > 0, sums, 1.0), equal)

        return DiscreteHMM(normalised(start), normalised(moves), normalised(symbols)), total


def as_array(name: str, values: Any) -> Any:
    """Numbers in lists, arrays or tensors as an array."""
    try:
        found = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except ValueError:  # lists of different lengths
        raise DataError(f"{name}: found rows of different lengths, expected numbers in rows of one length") from None
    if found.dtype.kind not in "iuf" and found.size:
        raise DataError(f"{name}: found {str(found.ravel()[0])!r}, expected numbers")
    return found


def distributions(name: str, values: ArrayLike, dimensions: int) -> Floats:
    """Probabilities that sum to one in each row."""
    found = as_array(name, values).astype(np.float64)
    if found.ndim != dimensions or not found.size:
        expected = "one list of numbers" if dimensions == 1 else "a list of numbers for each state"
        raise DataError(f"{name}: found an array of {shown(found)}, expected {expected}")
    if not (found >= 0).all():
        raise DataError(f"{name}: found {found[~(found >= 0)][0]:g}, expected probabilities")
    sums = found.reshape(-1, found.shape[-1]).sum(1)
    wrong = int(np.abs(sums - 1).argmax())
    if abs(sums[wrong] - 1) > SUM_TOLERANCE:
        place = f"{name}[{wrong}]" if dimensions == 2 else name
        raise DataError(f"{place}: found probabilities that sum to {sums[wrong]:g}, expected 1")
    return np.asarray(found)


def shown(found: Any) -> str:
    """The shape of an array."""
    return "×".join(map(str, found.shape)) or "one number"
