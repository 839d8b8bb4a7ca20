"""Beam search in tensor operations over all sources and hypotheses at once, also in diverse groups.

Diverse beam search is a beam in groups that avoid each other's tokens (Vijayakumar et al. 2016). Each group is a beam
search of its own, as if its source were in the batch once per group. The groups interact in one way: before a group
chooses, every token costs it `Scorer.diversity` for each hypothesis of an earlier group of the same source that
continues with this token at this step (the paper's Hamming diversity). The cost decides what is chosen; scores stay
those of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.base import ConfigError, check_interrupted
from dragoman.data.tokenizers import EOS, SOS
from dragoman.decoding.beam_state import (
    BeamState,
    Candidates,
    Choice,
    add_greedy,
    complete_hypotheses,
    initial_state,
    open_candidates,
    top_candidates,
    top_next_tokens,
    update,
)
from dragoman.decoding.config import SearchConfig, StopRule
from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.constraints.tracker import ConstraintTracker
from dragoman.decoding.hypothesis import Hypothesis, Step, suppress_tokens
from dragoman.decoding.scorer import NEG_INF, Scorer
from dragoman.decoding.trace import Trace
from dragoman.models.kernels import topk
from dragoman.models.layers import observe_attention


@dataclass(frozen=True)
class BeamOptions:
    """How wide a beam search is, when it stops, and which outputs it may not give."""

    width: int  # open hypotheses per source, or per group of a diverse beam search
    n_best: int = 1  # hypotheses returned per source
    num_complete: int | None = None  # complete hypotheses after which a source is done; None: `width`
    stop: StopRule = "ahead"
    min_length: int = 0  # <eos> may not come earlier, unless the limit demands it
    no_repeat_ngram: int = 0  # no n-gram of this size occurs twice; 0: any may
    groups: int = 1  # more than 1: diverse beam search

    @classmethod
    def of(cls, config: SearchConfig, n_best: int) -> BeamOptions:
        """The options of search settings; greedy search ends with one complete hypothesis."""
        width, groups = max(config.beam, n_best), config.beam_groups
        if groups > 1 and config.beam % groups:
            raise ConfigError(f"search.beam_groups: found {groups}, expected a divisor of the beam of {config.beam}")
        return cls(
            config.beam // groups if groups > 1 else width,
            n_best,
            max(config.num_complete, n_best) if config.num_complete and config.beam > 1 else None,
            config.stop,
            config.min_length,
            config.no_repeat_ngram,
            groups,
        )

    @property
    def stop_rule(self) -> StopRule:
        """When a source is done; a beam of one is greedy search and always ends with its first <eos>."""
        return "complete" if self.width == 1 else self.stop


@torch.no_grad()
def beam_search(
    step: Step,
    state: Any,
    limits: Tensor,  # (B,) maximum number of tokens per source, <eos> included
    options: BeamOptions,
    scorer: Scorer = Scorer(),  # noqa: B008  (frozen)
    *,
    constraints: Sequence[ConstraintAutomaton | None] | None = None,  # one per source
    source_mask: Tensor | None = None,  # (B, S), for a coverage penalty
    trace: Trace | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of every source, best first; a source's result never depends on another source.

    Every step ranks the continuations of all open hypotheses and looks at the best 2k: those among the first k that
    end are complete, and the best k that do not end stay open. At its length limit a source may only end.

    Under constraints only continuations that can be completed within the limit are ranked; constraints take
    precedence over `min_length` and `no_repeat_ngram`. Sources with required phrases are done after half of
    `num_complete`. With `options.groups` several beams of `width` search every source (`BeamGroups`).
    """
    groups, whole_trace = None, trace
    if options.groups > 1:
        groups = BeamGroups(options.groups, scorer)
        rows = torch.arange(len(limits), device=limits.device).repeat_interleave(options.groups)
        trace = None if whole_trace is None else Trace(len(rows))
        limits, state = limits[rows], state.select(rows)
        constraints = None if constraints is None else [constraints[source] for source in rows.tolist()]
        source_mask = None if source_mask is None else source_mask[rows]
    coverage = None
    if scorer.coverage_penalty:
        assert source_mask is not None, "a coverage penalty needs the mask of the sources"
        coverage = CoverageTracker(step, scorer, source_mask)
    tracker = ConstraintTracker.start(constraints or [None] * len(limits), options.width)
    search = _BeamSearch(coverage.step if coverage else step, options, scorer, tracker, coverage, groups, trace)
    outputs = search.run(state, limits)
    if groups is None:
        return outputs
    if whole_trace is not None and trace is not None:
        whole_trace.merge_groups(trace, groups.count)
    return groups.merge(outputs, options.n_best)


class CoverageTracker:
    """The attention that open hypotheses have paid to each source token, for the coverage penalty.

    Wu et al. 2016, eq. 14, with the weights of the last layer that reads the source.
    """

    def __init__(self, step: Step, scorer: Scorer, mask: Tensor) -> None:
        self._step = step
        self.scorer = scorer
        self.mask = mask  # (B, S), True = real
        self.total: Tensor | None = None  # (B, k, S) before the last step
        self.newest: Tensor  # (B, k, S) of the last step

    def step(self, tokens: Tensor, state: object) -> tuple[Tensor, object]:
        recorded: list[Tensor] = []

        def record(module: nn.Module, weights: Tensor) -> None:
            if getattr(module, "is_cross_attention", False):
                recorded.append(weights)

        with observe_attention(record):
            out = self._step(tokens, state)
        if not recorded:
            raise ConfigError("search.coverage_penalty: this model does not attend to its source; set the penalty to 0")
        entries = recorded[-1].shape[-1]
        if entries != self.mask.shape[1]:
            raise ConfigError(
                f"search.coverage_penalty: found {entries} encoder outputs for {self.mask.shape[1]} source tokens, "
                "expected one per token; set the penalty to 0 with this encoder"
            )
        # Hypotheses are rows, or side by side in the row of their source: either way their order is the same.
        self.newest = recorded[-1].mean(1).reshape(len(self.mask), -1, entries)
        return out

    def _sum(self) -> Tensor:
        return self.newest if self.total is None else self.total + self.newest

    def scores(self, parents: Tensor) -> Tensor:
        """The coverage term of candidates (B, C) that continue these hypotheses."""
        return self.scorer.coverage(self._sum(), self.mask).gather(1, parents)

    def advance(self, parents: Tensor) -> None:
        """Take the sums of the hypotheses that the search keeps, (B, k)."""
        total = self._sum()
        self.total = total.gather(1, parents[:, :, None].expand(-1, -1, total.shape[2]))

    def select(self, sources: Tensor) -> None:
        self.mask = self.mask.index_select(0, sources)
        if self.total is not None:
            self.total = self.total.index_select(0, sources)


@dataclass
class _BeamSearch:
    """The parts of one search; the trackers follow its hypotheses."""

    step: Step
    options: BeamOptions
    scorer: Scorer
    tracker: ConstraintTracker
    coverage: CoverageTracker | None
    groups: BeamGroups | None
    trace: Trace | None

    def run(self, state: Any, limits: Tensor) -> list[list[Hypothesis]]:
        """Search until every source is done; sources that are done leave the batch."""
        options, width = self.options, self.options.width
        sources = torch.arange(len(limits), device=limits.device)  # which source each row of the beam is
        outputs: list[list[Hypothesis]] = [[] for _ in limits]
        state = state.expand(width)
        beam: BeamState | None = None
        last = torch.full((len(limits) * width,), SOS, dtype=torch.long, device=limits.device)
        while len(sources):
            check_interrupted()
            log_probabilities, state = self.step(last, state)
            beam = self.initial_state(limits, log_probabilities.dtype) if beam is None else beam
            candidates = self.candidates(beam, log_probabilities, sources)
            coverage = self.coverage.scores(candidates.parents) if self.coverage else None
            beam, kept = update(beam, candidates, n_best=options.n_best, stop=options.stop_rule, coverage=coverage)
            if self.trace is not None:
                scores = Scorer.score(candidates.totals, beam.divisors.take(beam.length), coverage)
                self.trace.add(sources, candidates, scores, kept)
            parents = candidates.parents.gather(1, kept)
            if self.tracker:
                self.tracker.advance(beam.totals, parents, beam.last)
            if self.coverage:
                self.coverage.advance(parents)
            rows = parents + torch.arange(len(sources), device=sources.device)[:, None] * width
            state = state.reorder(rows.flatten())
            if beam.done.any():
                done, going = beam.done.nonzero()[:, 0], (~beam.done).nonzero()[:, 0]
                finished = complete_hypotheses(beam.select(done), options.n_best)
                for source, hypotheses in zip(sources[done].tolist(), finished, strict=True):
                    outputs[source] = hypotheses
                sources, beam = sources[going], beam.select(going)
                self.tracker = self.tracker.select(going.tolist())
                if len(going):
                    state = state.select(going)
                    if self.coverage:
                        self.coverage.select(going)
            last = beam.last.flatten()
        return outputs

    def initial_state(self, limits: Tensor, dtype: torch.dtype) -> BeamState:
        """The beam before the first token, in float32 or better."""
        options = self.options
        num_complete = options.num_complete or options.width
        halved = torch.tensor(self.tracker.requires_phrases, dtype=torch.bool, device=limits.device)
        max_complete = torch.where(halved, max(1, num_complete // 2), num_complete)
        max_length = int(limits.max())
        size = (options.width, max(options.width, options.n_best), max_length)
        dtype = torch.promote_types(dtype, torch.float32)
        return initial_state(limits, size, max_complete, self.scorer.divisors(max_length), options.stop_rule, dtype)

    def candidates(self, beam: BeamState, log_probabilities: Tensor, sources: Tensor) -> Candidates:
        options = self.options
        if self.groups or self.tracker or options.no_repeat_ngram or options.min_length:
            return self.restricted_candidates(beam, log_probabilities, sources)
        return top_candidates(beam, top_next_tokens(log_probabilities, options.width))

    def restricted_candidates(self, beam: BeamState, log_probabilities: Tensor, sources: Tensor) -> Candidates:
        """As `top_candidates`, but from all scores (B, k, V), where not every continuation may be chosen."""
        (rows, width), vocabulary = beam.totals.shape, log_probabilities.shape[1]
        length = int(beam.length) + 1
        at_limit = (beam.limits <= length).repeat_interleave(width)
        token_scores = suppress_tokens(log_probabilities, at_limit).view(rows, width, vocabulary)
        preferred = token_scores
        if self.options.no_repeat_ngram:
            preferred = block_repeated_ngrams(preferred, beam.tokens[:, :, : length - 1], self.options.no_repeat_ngram)
        if length <= self.options.min_length:
            is_eos = torch.arange(vocabulary, device=sources.device) == EOS
            preferred = preferred.masked_fill(is_eos & ~at_limit.view(rows, width, 1), NEG_INF)
        scores = beam.totals[:, :, None] + preferred
        fallback = None
        if self.tracker and preferred is not token_scores:
            fallback = beam.totals[:, :, None] + token_scores
        # tokens that may follow the next one, of every source
        remaining: list[int] = (beam.limits - length - 1).tolist() if self.tracker else []

        def choose_for(rows: Tensor, scores: Tensor, fallback: Tensor | None) -> Choice:
            indices = rows.tolist()
            own_remaining = [remaining[row] for row in indices] if self.tracker else []
            return choose_candidates(self.tracker.select(indices), own_remaining, beam.greedy[rows], scores, fallback)

        if self.groups:
            choice = self.groups.choose(sources, scores, fallback, choose_for, width)
        else:
            choice = choose_candidates(self.tracker, remaining, beam.greedy, scores, fallback)
        rank_scores, index, may_complete, is_greedy = choice
        parents, own_scores = index // vocabulary, token_scores.flatten(1).gather(1, index)
        totals = rank_scores
        if self.groups:  # the diversity penalty counts for the choice alone
            totals = beam.totals.gather(1, parents) + own_scores
            totals = totals.masked_fill(rank_scores == NEG_INF, NEG_INF)
        return Candidates(rank_scores, totals, parents, index % vocabulary, own_scores, may_complete, is_greedy)


def choose_candidates(
    tracker: ConstraintTracker, remaining: list[int], greedy: Tensor, scores: Tensor, fallback: Tensor | None
) -> Choice:
    """The best of the scores (B, k, V), and the greedy candidate: the one that a beam of one would take.

    `greedy` (B,) tells which hypothesis is the greedy one, −1: none. `fallback` holds the scores without `min_length`
    and `no_repeat_ngram`.
    """
    width, vocabulary, slots = tracker.width, scores.shape[2], greedy.clamp(min=0)
    each = torch.arange(len(slots), device=slots.device)
    own_scores = scores[each, slots][:, None]  # (B, 1, V), a copy
    own_fallback = None if fallback is None else fallback[each, slots][:, None]
    best, index, may_complete = best_candidates(
        tracker, remaining, scores, fallback, min(2 * width, width * vocabulary)
    )
    greedy_score, greedy_index = best[:, :1], index[:, :1]  # of no effect without a greedy hypothesis
    if (greedy >= 0).any():
        narrow = tracker.of_slots(slots.tolist())
        own, own_index, ends = best_candidates(narrow, remaining, own_scores, own_fallback, min(2, vocabulary))
        ends = ends & (own_index == EOS) & (own > NEG_INF)  # where it may end, it ends
        first = ends.int().argmax(1, keepdim=True)
        greedy_score, greedy_index = own.gather(1, first), own_index.gather(1, first) + slots[:, None] * vocabulary
    return add_greedy(best, index, may_complete, greedy_score, greedy_index, greedy >= 0)


def best_candidates(
    tracker: ConstraintTracker, remaining: list[int], scores: Tensor, fallback: Tensor | None, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores and flat indices (B, count) of the best, and which may become complete."""
    if tracker:
        return tracker.choose(scores, fallback, count, remaining)
    best, index = topk(scores.flatten(1), count)
    return best, index, (torch.arange(count, device=best.device) < tracker.width).expand_as(best)


def block_repeated_ngrams(scores: Tensor, tokens: Tensor, size: int) -> Tensor:
    """Scores (B, k, V) with −∞ for tokens that would repeat an n-gram of tokens (B, k, t); never for <eos>."""
    if tokens.shape[2] < size:
        return scores
    ngrams = tokens.unfold(2, size, 1)  # (B, k, t − n + 1, n)
    suffix = tokens[:, :, tokens.shape[2] - size + 1 :]
    repeats = (ngrams[..., :-1] == suffix[:, :, None]).all(3)  # whether the n-gram's last token would repeat it
    blocked = torch.zeros_like(scores, dtype=torch.int32).scatter_add_(2, ngrams[..., -1], repeats.int()) > 0
    return scores.masked_fill(blocked, NEG_INF)


Chooser = Callable[[Tensor, Tensor, Tensor | None], Choice]  # rows (B',) of the batch, scores (B', k, V), fallback


class BeamGroups:
    """The rows of a batch in which each source occurs `count` times in a row, once for each group."""

    def __init__(self, count: int, scorer: Scorer) -> None:
        self.count = count
        self.scorer = scorer

    def choose(self, rows: Tensor, scores: Tensor, fallback: Tensor | None, choose: Chooser, width: int) -> Choice:
        """The choice of every row.

        `rows` (B,) are those of the batch that are not done. One group chooses after another, for all sources at once;
        a group that is done costs the others nothing.
        """
        vocabulary = scores.shape[2]
        owner = rows.div(self.count, rounding_mode="floor")
        source = (owner != owner.roll(1)).cumsum(0) % len(rows)  # the remaining sources, renumbered
        counts = scores.new_zeros(len(rows), vocabulary)  # how often groups of a source chose each token
        order: list[Tensor] = []
        choices: list[Choice] = []
        for group in range(self.count):
            own = (rows % self.count == group).nonzero()[:, 0]
            if not len(own):
                continue
            cost = self.scorer.diversity(counts[source[own], None])
            own_fallback = None if fallback is None else fallback[own] - cost
            choice = choose(own, scores[own] - cost, own_fallback)
            tokens = choice.flat_index % vocabulary
            kept, _ = open_candidates(choice.rank_scores, tokens == EOS, choice.is_greedy, width)
            tokens, is_open = tokens.gather(1, kept), choice.rank_scores.gather(1, kept) > NEG_INF
            chosen = (source[own, None].expand(-1, width), tokens)
            counts.index_put_(chosen, (is_open & (tokens != EOS)).to(counts), accumulate=True)
            order.append(own)
            choices.append(choice)
        back = torch.cat(order).argsort()
        return Choice(*(torch.cat(column)[back] for column in zip(*choices, strict=True)))

    def merge(self, outputs: Sequence[list[Hypothesis]], n_best: int) -> list[list[Hypothesis]]:
        """The n best of every source: the best of each group before any second best, each output once."""
        merged = []
        for first in range(0, len(outputs), self.count):
            groups = [group for group in outputs[first : first + self.count] if group]
            groups.sort(key=lambda group: -group[0].normalised)
            once: dict[tuple[int, ...], Hypothesis] = {}
            for hypothesis in chain.from_iterable(zip_longest(*groups)):
                if hypothesis is not None and len(once) < n_best:
                    once.setdefault(hypothesis.tokens, hypothesis)
            merged.append(sorted(once.values(), key=lambda hypothesis: -hypothesis.normalised))
        return merged
