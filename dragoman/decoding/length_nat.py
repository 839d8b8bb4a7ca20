"""Texts out of one token a position (FIELD C6): for every likely length the best of independent choices.

The positions do not know of each other, so the k best texts of one length are found exactly. A token scores the
log-probability it has at its position, and <eos> that of the length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.hypothesis import NEVER_WRITTEN, Hypothesis, divisor
from dragoman.models.contracts import LengthBeam

NOTHING = float("-inf")


@torch.no_grad()
def read(slots: LengthBeam, limits: Tensor, config: SearchConfig, most: int) -> list[list[Hypothesis]]:
    """The best texts of every source over its lengths, best first; the lengths keep to the limits already."""
    log_probabilities = slots.log_probabilities.clone()
    log_probabilities[..., [*NEVER_WRITTEN, EOS]] = NOTHING
    tokens, scores, totals = best_choices(log_probabilities, slots.lengths, most)
    found = []
    for row in range(len(slots.lengths)):
        hypotheses = []
        for place, size in enumerate(slots.lengths[row].tolist()):
            ending = float(slots.length_scores[row, place])
            parts_of = (part[row, place].tolist() for part in (tokens, scores, totals))
            for text, parts, total in zip(*parts_of, strict=True):
                total += ending
                if total != NOTHING:
                    normalised = total / divisor(size + 1, config.length_penalty, config.normalisation)
                    hypotheses.append(Hypothesis((*text[:size], EOS), (*parts[:size], ending), total, normalised))
        found.append(sorted(hypotheses, key=lambda one: -one.normalised)[:most])
    return found


def best_choices(log_probabilities: Tensor, lengths: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `most` best texts (B, k, most, T) of each length, their tokens' scores, and the sums, −∞ for no text."""
    rows, several, positions, vocabulary = log_probabilities.shape
    choices, symbols = log_probabilities.topk(min(most, vocabulary), -1)  # (B, k, T, c)
    totals = log_probabilities.new_full((rows, several, most), NOTHING)
    totals[:, :, 0] = 0.0
    tokens = symbols.new_zeros(rows, several, most, positions)
    scores = log_probabilities.new_zeros(rows, several, most, positions)
    for place in range(positions):
        going = (place < lengths)[:, :, None]
        sums = totals[:, :, :, None] + choices[:, :, None, place]  # (B, k, most, c)
        best, index = sums.flatten(2).topk(most, 2)
        origin, choice = index // choices.shape[3], index % choices.shape[3]
        deep = origin[..., None].expand(-1, -1, -1, positions)
        moved = tokens.gather(2, deep), scores.gather(2, deep)
        moved[0][..., place] = symbols[:, :, place].gather(2, choice)
        moved[1][..., place] = choices[:, :, place].gather(2, choice)
        totals = torch.where(going, best, totals)
        tokens = torch.where(going[..., None], moved[0], tokens)
        scores = torch.where(going[..., None], moved[1], scores)
    return tokens, scores, totals
