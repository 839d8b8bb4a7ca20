"""The one beam search (FIELD H3, H4), in tensor operations over all sources and hypotheses at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dragoman.data.tokenizers import EOS, PAD, SOS
from dragoman.search.core import Hypothesis, Step, allowed

NOTHING = float("-inf")


class Finished:
    """The best complete hypotheses of every source so far."""

    def __init__(self, sources: int, width: int, longest: int, device: torch.device) -> None:
        self.ranks = torch.full((sources, width), NOTHING, device=device)  # normalised scores
        self.tokens = torch.full((sources, width, longest), PAD, dtype=torch.long, device=device)
        self.scores = torch.zeros(sources, width, longest, device=device)
        self.count = torch.zeros(sources, dtype=torch.long, device=device)

    def add(self, sources: Tensor, ranks: Tensor, tokens: Tensor, scores: Tensor) -> None:
        """Merge candidates (B', C) of some sources, −∞ where there is none; tokens and scores (B', C, t)."""
        longest = self.tokens.shape[2]
        missing = longest - tokens.shape[2]
        tokens = torch.nn.functional.pad(tokens, (0, missing), value=PAD)
        scores = torch.nn.functional.pad(scores, (0, missing))
        self.count[sources] += (ranks > NOTHING).sum(1)
        # Old ones stand first, so that on equal scores the earlier hypothesis stays ahead.
        all_ranks = torch.cat([self.ranks[sources], ranks], 1)
        width = self.ranks.shape[1]
        order = all_ranks.sort(dim=1, descending=True, stable=True).indices[:, :width]
        deep = order[:, :, None].expand(-1, -1, longest)
        self.ranks[sources] = all_ranks.gather(1, order)
        self.tokens[sources] = torch.cat([self.tokens[sources], tokens], 1).gather(1, deep)
        self.scores[sources] = torch.cat([self.scores[sources], scores], 1).gather(1, deep)

    def hypotheses(self, most: int) -> list[list[Hypothesis]]:
        """As plain values, best first."""
        found = []
        for ranks, tokens, scores in zip(self.ranks.tolist(), self.tokens.tolist(), self.scores.tolist(), strict=True):
            rows = []
            for rank, row, parts in zip(ranks[:most], tokens, scores, strict=False):
                if rank > NOTHING:
                    size = row.index(EOS) + 1
                    rows.append(Hypothesis(tuple(row[:size]), tuple(parts[:size]), sum(parts[:size]), rank))
            found.append(rows)
        return found


@torch.no_grad()
def beam(
    step: Step,
    state: Any,
    limits: Tensor,  # (B,) most tokens per source, <eos> included
    *,
    width: int,
    length_penalty: float = 1.0,
    most: int = 1,
    complete: int | None = None,
) -> list[list[Hypothesis]]:
    """The `most` best outputs of every source, best first.

    Every step ranks all continuations of all live hypotheses and looks at the best 2·width: those among the first
    `width` that end are set aside as complete, the best `width` that go on live. A source is done when `complete`
    (by default `width`) hypotheses are complete or its limit is reached, where only <eos> may follow. What happens
    to one source never depends on another.
    """
    device, sources = limits.device, limits.shape[0]
    complete = complete or width
    finished = Finished(sources, max(width, most), int(limits.max()) if sources else 0, device)
    place = torch.arange(sources, device=device)  # which source each live block of `width` rows is
    state = state.branch(width)
    totals = torch.full((sources, width), NOTHING, device=device)
    totals[:, 0] = 0.0  # one real hypothesis at the start; its copies wait
    tokens = torch.full((sources, width, 0), PAD, dtype=torch.long, device=device)
    scores = torch.zeros(sources, width, 0, device=device)
    last = torch.full((sources * width,), SOS, dtype=torch.long, device=device)
    length = 0
    while len(place):
        log_probabilities, state = step(last, state)
        length += 1
        live, vocabulary = len(place), log_probabilities.shape[1]
        ending = (limits[place] <= length).repeat_interleave(width)
        options = allowed(log_probabilities, ending).view(live, width, vocabulary)
        if totals.dtype != options.dtype:
            totals, scores = totals.to(options), scores.to(options)
            finished.ranks, finished.scores = finished.ranks.to(options), finished.scores.to(options)
        candidates = (totals[:, :, None] + options).flatten(1)  # (B, k·V)
        best, index = candidates.topk(min(2 * width, candidates.shape[1]), 1)
        origin, token = index // vocabulary, index % vocabulary

        deep = origin[:, :, None].expand(-1, -1, length - 1)
        new_tokens = torch.cat([tokens.gather(1, deep), token[:, :, None]], 2)  # (B, 2k, t)
        part = options.flatten(1).gather(1, index)
        new_scores = torch.cat([scores.gather(1, deep), part[:, :, None]], 2)

        ends = token == EOS
        ahead = torch.arange(best.shape[1], device=device) < width
        ranks = torch.where(ends & ahead, best / length**length_penalty, NOTHING)
        finished.add(place, ranks, new_tokens, new_scores)

        totals, kept = best.masked_fill(ends, NOTHING).sort(dim=1, descending=True, stable=True)
        totals, kept = totals[:, :width], kept[:, :width]
        deep = kept[:, :, None].expand(-1, -1, length)
        tokens, scores = new_tokens.gather(1, deep), new_scores.gather(1, deep)
        last = token.gather(1, kept)
        origin = origin.gather(1, kept)

        # At the limit nothing goes on, except from a broken model: NaN is never −∞, and the search would never end.
        done = (finished.count[place] >= complete) | (totals[:, 0] == NOTHING) | (limits[place] <= length)
        rows = origin + torch.arange(live, device=device)[:, None] * width
        state = state.reorder(rows.flatten())
        if done.any():
            going = (~done).nonzero()[:, 0]
            place, totals, tokens, scores, last = (
                part.index_select(0, going) for part in (place, totals, tokens, scores, last)
            )
            if len(going):
                state = state.select(going)
        last = last.flatten()
    return finished.hypotheses(most)
