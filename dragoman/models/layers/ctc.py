"""Connectionist temporal classification (Graves et al. 2006).

A path has one symbol or the blank at every position. Merging repeats and then dropping blanks gives its text.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

NEG_INF = float("-inf")


def collapse(path: Tensor, lengths: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """The texts (B, T) of paths (B, T), padded with the blank, and their sizes (B,); a row has `lengths` positions."""
    frames = torch.arange(path.shape[1], device=path.device)
    before = F.pad(path, (1, 0), value=blank)[:, :-1]
    kept = (path != blank) & (path != before) & (frames < lengths[:, None])
    order = kept.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices  # symbols first, in their order
    sizes = kept.sum(1)
    texts = path.gather(1, order)
    return texts.masked_fill(frames >= sizes[:, None], blank), sizes


def min_path_length(texts: Tensor, sizes: Tensor) -> Tensor:
    """The length (B,) of the shortest path of each text (B, L): a blank separates equal neighbours."""
    inside = torch.arange(1, texts.shape[1], device=texts.device) < sizes[:, None]
    return sizes + ((texts[:, 1:] == texts[:, :-1]) & inside).sum(1)


def with_blanks(texts: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """Texts (…, L) with blanks before, between and after: (…, 2L+1); and which entries a path may reach from two
    entries before, skipping the blank between two different symbols."""
    symbols = texts.new_full((*texts.shape[:-1], 2 * texts.shape[-1] + 1), blank)
    symbols[..., 1::2] = texts
    return symbols, F.pad((symbols[..., 2:] != blank) & (symbols[..., 2:] != symbols[..., :-2]), (2, 0))


@torch.no_grad()
def ctc_log_probability(
    log_probabilities: Tensor,  # (B, T, V)
    lengths: Tensor,  # (B,) positions that are real
    texts: Tensor,  # (B, k, L) several texts a row
    sizes: Tensor,  # (B, k)
    blank: int,
) -> Tensor:
    """Log-probability (B, k) of texts, summed over all their paths; −∞ for a text without one.

    The forward variable of Graves et al. 2006, eq. 6 to 8. It reads only the symbols of the texts, so the
    emissions of a source need not be repeated for its hypotheses, as for `torch.nn.functional.ctc_loss`.
    """
    symbols, skips = with_blanks(texts, blank)
    forward = log_probabilities.new_full(symbols.shape, NEG_INF)
    forward[:, :, 0] = 0.0
    for frame in range(log_probabilities.shape[1]):
        emitted = log_probabilities[:, frame].gather(1, symbols.flatten(1)).view_as(forward)
        next_symbol = F.pad(forward[:, :, :-1], (1, 0), value=NEG_INF)
        two = F.pad(forward[:, :, :-2], (2, 0), value=NEG_INF).masked_fill(~skips, NEG_INF)
        later = torch.logaddexp(torch.logaddexp(forward, next_symbol), two[:, :, : forward.shape[2]]) + emitted
        forward = torch.where((frame < lengths)[:, None, None], later, forward)
    at_blank = forward.gather(2, 2 * sizes[:, :, None])[:, :, 0]
    at_symbol = forward.gather(2, (2 * sizes[:, :, None] - 1).clamp(min=0))[:, :, 0]
    return torch.where(sizes > 0, torch.logaddexp(at_blank, at_symbol), at_blank)


@torch.no_grad()
def viterbi_positions(
    log_probabilities: Tensor,  # (B, T, V)
    lengths: Tensor,  # (B,) positions that are real
    texts: Tensor,  # (B, L)
    sizes: Tensor,  # (B,)
    blank: int,
) -> tuple[Tensor, Tensor]:
    """The first and the last position (B, L) of every symbol of a text on the most probable of its paths.

    −1 beyond the end of a text, and for one without a path.
    """
    rows, max_length = texts.shape
    symbols, skips = with_blanks(texts, blank)
    best = log_probabilities.new_full(symbols.shape, NEG_INF)
    best[:, 0] = 0.0
    steps = []  # how far each state lies behind the one it was reached from
    for frame in range(log_probabilities.shape[1]):
        next_symbol = F.pad(best[:, :-1], (1, 0), value=NEG_INF)
        two = F.pad(best[:, :-2], (2, 0), value=NEG_INF).masked_fill(~skips, NEG_INF)
        later, step = torch.stack([best, next_symbol, two[:, : best.shape[1]]]).max(0)
        going = (frame < lengths)[:, None]
        best = torch.where(going, later + log_probabilities[:, frame].gather(1, symbols), best)
        steps.append(torch.where(going, step, 0))
    ends = torch.stack([2 * sizes, (2 * sizes - 1).clamp(min=0)], 1)
    scores, last = best.gather(1, ends).max(1)
    state = ends.gather(1, last[:, None])[:, 0]
    first_frames = texts.new_full((rows, max_length + 1), len(steps))  # the last column is for blanks
    last_frames = texts.new_full((rows, max_length + 1), -1)
    for frame in reversed(range(len(steps))):
        spoken = (frame < lengths) & (state % 2 == 1) & (scores > NEG_INF)
        column = torch.where(spoken, state // 2, max_length)[:, None]
        here = torch.full_like(column, frame)
        first_frames.scatter_(1, column, here)  # going backwards, the earliest is written last
        last_frames.scatter_reduce_(1, column, here, "amax")
        state = state - steps[frame].gather(1, state[:, None])[:, 0]
    said = last_frames[:, :-1] >= 0
    return first_frames[:, :-1].masked_fill(~said, -1), last_frames[:, :-1]
