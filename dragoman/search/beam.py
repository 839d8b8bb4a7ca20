"""The one beam search (FIELD H3, H4), in tensor operations over all sources and hypotheses at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dragoman.data.tokenizers import EOS, PAD, SOS
from dragoman.search.best import best as best_of
from dragoman.search.core import Hypothesis, Step, allowed, divisor
from dragoman.search.coverage import Coverage, without_repeats
from dragoman.search.groups import Groups
from dragoman.search.guides import Guides
from dragoman.search.rules import Rules
from dragoman.search.trace import Trace

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


@dataclass(frozen=True)
class Look:
    """How the best continuations of some sources are found."""

    looked: int
    width: int
    guides: Guides
    left: list[int]  # tokens that may still follow the next one, of every source

    def __call__(
        self, candidates: Tensor, unwished: Tensor | None, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores and flat places (B, C) of the best, and which may become complete; rows (B,): of these sources."""
        if self.guides:
            guides, left = self.guides, self.left
            if rows is not None:
                guides, left = guides.of(rows.tolist()), [left[row] for row in rows.tolist()]
            return guides.choose(candidates, unwished, self.looked, left)
        best, index = best_of(candidates.flatten(1), self.looked)
        return best, index, (torch.arange(self.looked, device=best.device) < self.width).expand_as(best)


def best_continuations(totals: Tensor, options: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Of sums so far (B, k) and log-probabilities (B, k, V) the `count` best new sums and their flat places (B, C).

    They are among the best of each hypothesis, which are found without adding anything.
    """
    live, width, vocabulary = options.shape
    each = min(count, vocabulary)
    values, tokens = (part.view(live, width, each) for part in best_of(options.view(-1, vocabulary), each))
    best, index = (totals[:, :, None] + values).flatten(1).topk(count, 1)
    return best, (index // each) * vocabulary + tokens.flatten(1).gather(1, index)


@torch.no_grad()
def beam(
    step: Step,
    state: Any,
    limits: Tensor,  # (B,) most tokens per source, <eos> included
    *,
    width: int,
    length_penalty: float = 1.0,
    normalisation: str = "power",
    most: int = 1,
    complete: int | None = None,
    certain: bool = False,
    shortest: int = 0,
    no_repeat: int = 0,
    rules: Sequence[Rules | None] | None = None,
    coverage: Coverage | None = None,
    trace: Trace | None = None,
    groups: Groups | None = None,
) -> list[list[Hypothesis]]:
    """The `most` best outputs of every source, best first.

    Every step ranks all continuations of all live hypotheses and looks at the best 2·width: those among the first
    `width` that end are set aside as complete, the best `width` that go on live. A source is done when `complete`
    (by default `width`) hypotheses are complete or its limit is reached, where only <eos> may follow. What happens
    to one source never depends on another.

    With `certain` a source is done when no live hypothesis can come before its `most` best: log-probabilities only
    sum up to less, so one that lives is at best worth its sum so far over the divisor at the limit. Under `rules`
    (one a source) only continuations that can be completed in time are ranked; where phrases are required the places
    are shared out as `Guides` says, and half as many complete ones are enough. Rules go before `shortest` and
    `no_repeat` where both cannot be kept.

    With `groups` every source is searched by several beams of `width` that keep away from each other, and has `most`
    outputs of all of them.
    """
    whole = trace
    if groups:
        rows = groups.rows(len(limits), limits.device)
        trace = None if whole is None else Trace(len(rows))
        limits, state = limits[rows], state.select(rows)
        rules = None if rules is None else [rules[source] for source in rows.tolist()]
        if coverage:
            coverage.select(rows)
    device, sources = limits.device, limits.shape[0]
    complete = complete or width
    soonest, latest = (int(limits.min()), int(limits.max())) if sources else (0, 0)
    finished = Finished(sources, max(width, most), latest, device)
    place = torch.arange(sources, device=device)  # which source each live block of `width` rows is
    guides = Guides(rules or [None] * sources, width)
    half = torch.tensor(guides.required, dtype=torch.bool, device=device)
    enough = torch.where(half, max(1, complete // 2), complete)
    step = coverage.step if coverage else step
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
        ending = (limits[place] <= length).repeat_interleave(width) if length >= soonest else None
        options = allowed(log_probabilities, ending).view(live, width, vocabulary)
        if totals.dtype != options.dtype:
            totals, scores = totals.to(options), scores.to(options)
            finished.ranks, finished.scores = finished.ranks.to(options), finished.scores.to(options)
        wished = options
        if no_repeat:
            wished = without_repeats(wished, tokens, no_repeat)
        if length <= shortest:
            early = (torch.arange(vocabulary, device=device) == EOS).expand(live, width, -1)
            wished = wished.masked_fill(early if ending is None else early & ~ending.view(live, width, 1), NOTHING)
        looked = min(2 * width, width * vocabulary)
        if groups or guides:
            candidates = totals[:, :, None] + wished  # (B, k, V)
            look = Look(looked, width, guides, (limits[place] - length - 1).tolist() if guides else [])
            unwished = None if wished is options or not guides else totals[:, :, None] + options
            if groups:
                ranked, index, ahead = groups.choose(place, candidates, unwished, look, width)
            else:
                ranked, index, ahead = look(candidates, unwished)
        else:
            ranked, index = best_continuations(totals, wished, looked)
            ahead = torch.arange(looked, device=device) < width
        origin, token = index // vocabulary, index % vocabulary

        deep = origin[:, :, None].expand(-1, -1, length - 1)
        new_tokens = torch.cat([tokens.gather(1, deep), token[:, :, None]], 2)  # (B, 2k, t)
        part = options.flatten(1).gather(1, index)
        best = ranked
        if groups:  # what a group was ranked by is not what it is worth
            best = (totals.gather(1, origin) + part).masked_fill(ranked == NOTHING, NOTHING)
        new_scores = torch.cat([scores.gather(1, deep), part[:, :, None]], 2)

        ends = token == EOS
        worth = best / divisor(length, length_penalty, normalisation)
        if coverage:
            worth = worth + coverage.costs(origin)
        ranks = torch.where(ends & ahead, worth, NOTHING)
        finished.add(place, ranks, new_tokens, new_scores)

        kept = ranked.masked_fill(ends, NOTHING).sort(dim=1, descending=True, stable=True).indices[:, :width]
        totals = best.masked_fill(ends, NOTHING).gather(1, kept)
        if trace is not None:
            trace.add(place, origin, token, part, best, worth, ends & ahead, kept)
        deep = kept[:, :, None].expand(-1, -1, length)
        tokens, scores = new_tokens.gather(1, deep), new_scores.gather(1, deep)
        last = token.gather(1, kept)
        origin = origin.gather(1, kept)
        if guides:
            guides.advance(totals, origin, last)
        if coverage:
            coverage.advance(origin)

        if certain:
            longest = limits[place].tolist()
            divided = totals.new_tensor([divisor(limit, length_penalty, normalisation) for limit in longest])
            done = finished.ranks[place, most - 1] >= totals.amax(1) / divided
        else:
            done = finished.count[place] >= enough[place]
        # At the limit nothing goes on, except from a broken model: NaN is never −∞, and the search would never end.
        done |= (totals[:, 0] == NOTHING) | (limits[place] <= length)
        rows = origin + torch.arange(live, device=device)[:, None] * width
        state = state.reorder(rows.flatten())
        if done.any():
            going = (~done).nonzero()[:, 0]
            place, totals, tokens, scores, last = (
                part.index_select(0, going) for part in (place, totals, tokens, scores, last)
            )
            guides.select(going.tolist())
            if len(going):
                state = state.select(going)
                if coverage:
                    coverage.select(going)
        last = last.flatten()
    found = finished.hypotheses(most)
    if not groups:
        return found
    if whole is not None and trace is not None:
        whole.join(trace, groups.count)
    return groups.together(found, most)
