"""The hidden Markov model of word alignment (Vogel et al. 1996; Och and Ney 2003) for many sentence pairs at once.

A state for every source word, and one for the empty word after each: the empty word keeps the place of the last source
word. Pairs are the last axis of all arrays, so that every operation runs over long rows of numbers. They are sorted by
the length of their targets: those that have word t are the last ones, from pair `first[t]` on.
"""

from __future__ import annotations

import numpy as np

from dragoman.classical.rows import Floats, Ints

EMPTY = 0.2  # probability of the empty word
JUMPS = 40  # longer jumps count as this long
TINY = 1e-300


def transitions(jumps: Floats, length: int) -> tuple[Floats, Floats]:
    """p(next source word | last) (S, S), and p(first source word) (S,), from the weights of jumps by −JUMPS … JUMPS."""
    places = np.arange(length)
    weights = jumps[np.clip(places[None] - places[:, None], -JUMPS, JUMPS) + JUMPS]
    starts = jumps[np.clip(places + 1, -JUMPS, JUMPS) + JUMPS]
    return weights / weights.sum(1, keepdims=True), starts / starts.sum()


def forward_backward(
    emitted: Floats, first: Ints, jumps: Floats, counting: bool = False
) -> tuple[Floats, Floats, Floats | None]:
    """Posteriors (T, S+1, N), log-likelihoods (N,), and with `counting` expected jumps.

    `emitted` is p(target word | source word) (T, S+1, N), the empty word first.
    """
    steps, length, count = emitted.shape[0], emitted.shape[1] - 1, emitted.shape[2]
    matrix, starts = transitions(jumps, length)
    null, own = EMPTY * emitted[:, 0], emitted[:, 1:]  # (T, N), (T, S, N)
    moves = (1 - EMPTY) * matrix
    before = np.empty((steps + 1, length, count))  # p(last source word | target words up to here), at first the start
    before[0] = starts[:, None]
    real = np.empty_like(own)  # the same for states of source words alone
    inverse = np.ones((steps, count))  # 1 / p(target word | those before)
    for step in range(steps):
        active = slice(first[step], None)
        now, last, after = real[step, :, active], before[step, :, active], before[step + 1, :, active]
        if step:
            np.matmul(moves.T, last, out=now)
        else:
            np.multiply((1 - EMPTY) * starts[:, None], 1.0, out=now)
        now *= own[step, :, active]
        np.multiply(last, null[step, active], out=after)
        after += now
        scale = 1 / np.maximum(after.sum(0), TINY)
        inverse[step, active] = scale
        now *= scale
        after *= scale
    posterior = np.zeros_like(emitted)
    behind = np.ones((length, count))  # the same for both states of a source word
    moved = np.zeros((length, length))
    null *= inverse
    for step in range(steps - 1, -1, -1):
        active = slice(first[step], None)
        later, last = behind[:, active], before[step, :, active]
        np.multiply(real[step, :, active], later, out=posterior[step, 1:, active])
        np.multiply(np.einsum("sn,sn->n", last, later), null[step, active], out=posterior[step, 0, active])
        if step:
            weighted = own[step, :, active] * later
            weighted *= inverse[step, active]
            if counting:
                moved += last @ weighted.T
            later *= null[step, active]
            later += moves @ weighted
    jump_counts = expected_jumps(moved * moves, posterior[0, 1:].sum(1)) if counting else None
    return posterior, -np.log(inverse).sum(0), jump_counts


def expected_jumps(moved: Floats, starts: Floats) -> Floats:
    """Jumps by their distance, from those between two source words (S, S) and those to the first one (S,)."""
    jumps, places = np.zeros(2 * JUMPS + 1), np.arange(len(starts))
    np.add.at(jumps, np.clip(places[None] - places[:, None], -JUMPS, JUMPS) + JUMPS, moved)
    np.add.at(jumps, np.clip(places + 1, -JUMPS, JUMPS) + JUMPS, starts)
    return jumps
