"""Connectionist temporal classification: what a path of symbols and blanks says, and how probable a text is.

Graves et al. 2006. A path has one symbol or the blank at every position; merging repeats and then dropping blanks
gives its text (FIELD H8).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

NOTHING = float("-inf")


def collapsed(path: Tensor, lengths: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """Texts (B, T) of paths (B, T), filled up with the blank, and their sizes (B,); a row has `lengths` positions."""
    places = torch.arange(path.shape[1], device=path.device)
    before = F.pad(path, (1, 0), value=blank)[:, :-1]
    kept = (path != blank) & (path != before) & (places < lengths[:, None])
    order = kept.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices  # what is kept comes first
    sizes = kept.sum(1)
    texts = path.gather(1, order)
    return texts.masked_fill(places >= sizes[:, None], blank), sizes


def needed_positions(texts: Tensor, sizes: Tensor) -> Tensor:
    """How many positions the shortest path of each text (B, L) has: a blank must part equal neighbours; (B,)."""
    inside = torch.arange(1, texts.shape[1], device=texts.device) < sizes[:, None]
    return sizes + ((texts[:, 1:] == texts[:, :-1]) & inside).sum(1)


@torch.no_grad()
def text_log_probability(
    log_probabilities: Tensor,  # (B, T, V)
    lengths: Tensor,  # (B,) positions that are real
    texts: Tensor,  # (B, k, L) several texts a row
    sizes: Tensor,  # (B, k)
    blank: int,
) -> Tensor:
    """Log-probability (B, k) of texts, summed over all their paths; −∞ for a text without one.

    The forward variable of Graves et al. 2006, eq. 6 to 8. It looks up only the symbols of the texts, so the
    emissions of a source are never repeated for its hypotheses, as `torch.nn.functional.ctc_loss` would need.
    """
    rows, several, longest = texts.shape
    symbols = texts.new_full((rows, several, 2 * longest + 1), blank)  # a blank before, between and after
    symbols[:, :, 1::2] = texts
    skips = F.pad((symbols[:, :, 2:] != blank) & (symbols[:, :, 2:] != symbols[:, :, :-2]), (2, 0))
    forward = log_probabilities.new_full(symbols.shape, NOTHING)
    forward[:, :, 0] = 0.0
    for place in range(log_probabilities.shape[1]):
        emitted = log_probabilities[:, place].gather(1, symbols.flatten(1)).view_as(forward)
        one = F.pad(forward[:, :, :-1], (1, 0), value=NOTHING)
        two = F.pad(forward[:, :, :-2], (2, 0), value=NOTHING).masked_fill(~skips, NOTHING)
        later = torch.logaddexp(torch.logaddexp(forward, one), two[:, :, : forward.shape[2]]) + emitted
        forward = torch.where((place < lengths)[:, None, None], later, forward)
    at_blank = forward.gather(2, 2 * sizes[:, :, None])[:, :, 0]
    at_symbol = forward.gather(2, (2 * sizes[:, :, None] - 1).clamp(min=0))[:, :, 0]
    return torch.where(sizes > 0, torch.logaddexp(at_blank, at_symbol), at_blank)
