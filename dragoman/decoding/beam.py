"""The one beam search (FIELD H3, H4), in tensor operations over all sources and hypotheses at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.data.tokenizers.base import EOS, PAD, SOS
from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.constraints.tracker import ConstraintTracker
from dragoman.decoding.coverage import Coverage, without_repeats
from dragoman.decoding.diverse_beam import Groups
from dragoman.decoding.hypothesis import NEVER_WRITTEN, Hypothesis, Step, allowed, divisor
from dragoman.decoding.trace import Trace
from dragoman.kernels.topk import best as best_of

NOTHING = float("-inf")


class Live(NamedTuple):
    """All that a search knows of its sources, in tensors whose shapes never change: so a GPU can repeat a step.

    B sources, k hypotheses of each that go on, W complete ones that are remembered, L tokens at most.
    """

    limits: Tensor  # (B,) most tokens, <eos> included
    enough: Tensor  # (B,) complete hypotheses after which a source is done
    totals: Tensor  # (B, k) Σ log p; −∞ where there is no hypothesis
    tokens: Tensor  # (B, k, L)
    scores: Tensor  # (B, k, L) log-probability of each token
    last: Tensor  # (B, k) the newest token
    length: Tensor  # () tokens written
    done: Tensor  # (B,)
    ended: Tensor  # (B,) hypotheses that were complete so far
    ranks: Tensor  # (B, W) what the best complete ones are worth, best first; −∞: there is none
    complete: Tensor  # (B, W, L) their tokens
    parts: Tensor  # (B, W, L) and log-probabilities
    divisors: Tensor  # (L + 1,) of sums, by length

    def select(self, sources: Tensor) -> Live:
        """Keep some sources."""
        return self._replace(
            **{
                name: part.index_select(0, sources)
                for name, part in self._asdict().items()
                if name not in ("length", "divisors")
            }
        )


def begin(
    limits: Tensor, longest: int, width: int, kept: int, enough: Tensor, divisors: Sequence[float], dtype: torch.dtype
) -> Live:
    """Before the first token: one real hypothesis of every source; its copies wait."""
    device, sources = limits.device, limits.shape[0]
    totals = torch.full((sources, width), NOTHING, dtype=dtype, device=device)
    totals[:, 0] = 0.0
    return Live(
        limits=limits,
        enough=enough,
        totals=totals,
        tokens=torch.full((sources, width, longest), PAD, dtype=torch.long, device=device),
        scores=torch.zeros(sources, width, longest, dtype=dtype, device=device),
        last=torch.full((sources, width), SOS, dtype=torch.long, device=device),
        length=torch.zeros((), dtype=torch.long, device=device),
        done=torch.zeros(sources, dtype=torch.bool, device=device),
        ended=torch.zeros(sources, dtype=torch.long, device=device),
        ranks=torch.full((sources, kept), NOTHING, dtype=dtype, device=device),
        complete=torch.full((sources, kept, longest), PAD, dtype=torch.long, device=device),
        parts=torch.zeros(sources, kept, longest, dtype=dtype, device=device),
        divisors=torch.tensor(divisors, dtype=dtype, device=device),
    )


class Choice(NamedTuple):
    """The continuations of every source that a step looks at, best first: all (B, C)."""

    ranked: Tensor  # what they were chosen by
    best: Tensor  # Σ log p
    origin: Tensor  # which hypothesis each comes from
    token: Tensor
    part: Tensor  # log-probability of the token
    ahead: Tensor  # whether it may become complete


class Nexts(NamedTuple):
    """The best next tokens of every hypothesis, best first."""

    values: Tensor  # (N, E) log-probabilities
    tokens: Tensor  # (N, E)
    ends: Tensor  # (N, 1) log-probability of <eos>


def next_tokens(log_probabilities: Tensor, count: int) -> Nexts:
    """Of log-probabilities (N, V), which are changed: what is never written is not among them."""
    log_probabilities[:, : len(NEVER_WRITTEN)] = NOTHING
    values, tokens = best_of(log_probabilities, count)
    return Nexts(values, tokens, log_probabilities[:, EOS : EOS + 1])


def each_of(width: int, vocabulary: int) -> int:
    """How many next tokens of a hypothesis can be among the best 2k continuations of its source."""
    return min(2 * width, vocabulary)


def plain_choice(live: Live, nexts: Nexts) -> Choice:
    """The best 2k continuations of every source; at its limit it may only end."""
    sources, width = live.totals.shape
    each = nexts.values.shape[1]
    ending = (live.limits <= live.length + 1).repeat_interleave(width)[:, None]  # (N, 1)
    end = torch.full_like(nexts.values, NOTHING)
    end[:, :1] = nexts.ends
    values = torch.where(ending, end, nexts.values).view(sources, width * each)
    tokens = nexts.tokens.masked_fill(ending, EOS).view(sources, width * each)
    looked = min(2 * width, width * each)
    sums = live.totals.repeat_interleave(each, 1) + values
    best, index = sums.topk(looked, 1)
    ahead = (torch.arange(looked, device=best.device) < width).expand_as(best)
    return Choice(best, best, index // each, tokens.gather(1, index), values.gather(1, index), ahead)


def settle(live: Live, choice: Choice, *, most: int, certain: bool, costs: Tensor | None = None) -> tuple[Live, Tensor]:
    """Set aside what is complete and go on with the best of the rest; also which continuations those are (B, k).

    `costs` are added to what continuations would be worth if they were complete.
    """
    width, longest = live.totals.shape[1], live.tokens.shape[2]
    length = live.length + 1
    here = torch.arange(longest, device=length.device) == live.length
    deep = choice.origin[:, :, None].expand(-1, -1, longest)
    tokens = torch.where(here, choice.token[:, :, None], live.tokens.gather(1, deep))  # (B, C, L)
    scores = torch.where(here, choice.part[:, :, None], live.scores.gather(1, deep))
    ends = choice.token == EOS
    worth = worth_of(live, choice, costs)
    ranks = torch.where(ends & choice.ahead, worth, NOTHING)
    # Old ones stand first, so that on equal scores the earlier hypothesis stays ahead.
    every = torch.cat([live.ranks, ranks], 1)
    order = every.sort(dim=1, descending=True, stable=True).indices[:, : live.ranks.shape[1]]
    whole = order[:, :, None].expand(-1, -1, longest)
    kept = choice.ranked.masked_fill(ends, NOTHING).sort(dim=1, descending=True, stable=True).indices[:, :width]
    ranks = every.gather(1, order)
    ended = live.ended + (every[:, live.ranks.shape[1] :] > NOTHING).sum(1)
    totals = choice.best.masked_fill(ends, NOTHING).gather(1, kept)
    if certain:
        hope = totals.amax(1) / live.divisors.take(live.limits)
        done = ranks[:, most - 1] >= hope
    else:
        done = ended >= live.enough
    # At the limit nothing goes on, except from a broken model: NaN is never −∞, and the search would never end.
    done = live.done | done | (totals[:, 0] == NOTHING) | (live.limits <= length)
    deep = kept[:, :, None].expand(-1, -1, longest)
    return live._replace(
        totals=totals.masked_fill(done[:, None], NOTHING),
        tokens=tokens.gather(1, deep),
        scores=scores.gather(1, deep),
        last=choice.token.gather(1, kept),
        length=length,
        done=done,
        ended=ended,
        ranks=ranks,
        complete=torch.cat([live.complete, tokens], 1).gather(1, whole),
        parts=torch.cat([live.parts, scores], 1).gather(1, whole),
    ), kept


def worth_of(live: Live, choice: Choice, costs: Tensor | None) -> Tensor:
    """What continuations would be ranked by if they were complete."""
    worth = choice.best / live.divisors.take(live.length + 1)
    return worth if costs is None else worth + costs


def hypotheses(live: Live, most: int) -> list[list[Hypothesis]]:
    """The complete ones as plain values, best first."""
    found = []
    values = (part[:, :most].tolist() for part in (live.ranks, live.complete, live.parts))
    for ranks, tokens, scores in zip(*values, strict=True):
        rows = []
        for rank, row, parts in zip(ranks, tokens, scores, strict=True):
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
    guides: ConstraintTracker
    left: list[int]  # tokens that may still follow the next one, of every source

    def __call__(
        self, candidates: Tensor, unwished: Tensor | None, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores and flat places (B, C) of the best, and which may become complete; rows (B,): of these sources."""
        if self.guides:
            guides, left = self.guides, self.left
            if rows is not None:
                guides, left = guides.subset(rows.tolist()), [left[row] for row in rows.tolist()]
            return guides.choose(candidates, unwished, self.looked, left)
        best, index = best_of(candidates.flatten(1), self.looked)
        return best, index, (torch.arange(self.looked, device=best.device) < self.width).expand_as(best)


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
    rules: Sequence[ConstraintAutomaton | None] | None = None,
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
    are shared out as `ConstraintTracker` says, and half as many complete ones are enough. Rules go before `shortest`
    and `no_repeat` where both cannot be kept.

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
    sources, complete = limits.shape[0], complete or width
    guides = ConstraintTracker(rules or [None] * sources, width)
    half = torch.tensor(guides.requires_phrases, dtype=torch.bool, device=limits.device)
    enough = torch.where(half, max(1, complete // 2), complete)
    longest = int(limits.max()) if sources else 0
    divisors = [1.0, *(divisor(length, length_penalty, normalisation) for length in range(1, longest + 1))]
    live: Live | None = None
    step, state = coverage.step if coverage else step, state.expand(width)
    place = torch.arange(sources, device=limits.device)  # which source each live one is
    last = torch.full((sources * width,), SOS, dtype=torch.long, device=limits.device)
    over: list[tuple[Tensor, Live]] = []
    while len(place):
        log_probabilities, state = step(last, state)
        if live is None:
            dtype = torch.promote_types(log_probabilities.dtype, torch.float32)
            live = begin(limits, longest, width, max(width, most), enough, divisors, dtype)
        if groups or guides or no_repeat or shortest:
            choice = ruled_choice(live, log_probabilities, place, guides, groups, shortest, no_repeat)
        else:
            choice = plain_choice(live, next_tokens(log_probabilities, each_of(width, log_probabilities.shape[1])))
        costs = coverage.costs(choice.origin) if coverage else None
        before = live
        live, kept = settle(before, choice, most=most, certain=certain, costs=costs)
        if trace is not None:
            complete_now = (choice.token == EOS) & choice.ahead
            shown = (choice.origin, choice.token, choice.part, choice.best, worth_of(before, choice, costs))
            trace.add(place, *shown, complete_now, kept)
        origin = choice.origin.gather(1, kept)
        if guides:
            guides.advance(live.totals, origin, live.last)
        if coverage:
            coverage.advance(origin)
        rows = origin + torch.arange(len(place), device=place.device)[:, None] * width
        state = state.reorder(rows.flatten())
        if live.done.any():
            going, gone = (~live.done).nonzero()[:, 0], live.done.nonzero()[:, 0]
            over.append((place[gone], live.select(gone)))
            place, live = place[going], live.select(going)
            guides.select(going.tolist())
            if len(going):
                state = state.select(going)
                if coverage:
                    coverage.select(going)
        last = live.last.flatten()
    found: list[list[Hypothesis]] = [[] for _ in range(sources)]
    for places, part in over:
        for source, outputs in zip(places.tolist(), hypotheses(part, most), strict=True):
            found[source] = outputs
    if not groups:
        return found
    if whole is not None and trace is not None:
        whole.join(trace, groups.count)
    return groups.together(found, most)


def ruled_choice(
    live: Live,
    log_probabilities: Tensor,
    place: Tensor,
    guides: ConstraintTracker,
    groups: Groups | None,
    shortest: int,
    no_repeat: int,
) -> Choice:
    """The same as `plain_choice` where not every continuation may be chosen."""
    sources, width = live.totals.shape
    vocabulary = log_probabilities.shape[1]
    length = int(live.length) + 1
    ending = (live.limits <= length).repeat_interleave(width)
    options = allowed(log_probabilities, ending).view(sources, width, vocabulary)
    wished = options
    if no_repeat:
        wished = without_repeats(wished, live.tokens[:, :, : length - 1], no_repeat)
    if length <= shortest:
        early = (torch.arange(vocabulary, device=place.device) == EOS) & ~ending.view(sources, width, 1)
        wished = wished.masked_fill(early, NOTHING)
    candidates = live.totals[:, :, None] + wished  # (B, k, V)
    look = Look(
        min(2 * width, width * vocabulary), width, guides, (live.limits - length - 1).tolist() if guides else []
    )
    unwished = None if wished is options or not guides else live.totals[:, :, None] + options
    if groups:
        ranked, index, ahead = groups.choose(place, candidates, unwished, look, width)
    else:
        ranked, index, ahead = look(candidates, unwished)
    origin, part = index // vocabulary, options.flatten(1).gather(1, index)
    best = ranked
    if groups:  # what a group was ranked by is not what it is worth
        best = (live.totals.gather(1, origin) + part).masked_fill(ranked == NOTHING, NOTHING)
    return Choice(ranked, best, origin, index % vocabulary, part, ahead)
