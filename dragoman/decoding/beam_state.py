"""The state of a beam search and one step of it, in tensors whose shapes never change.

The plain search (beam.py) and the CUDA-graph search (cuda_graphs.py) share these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.data.tokenizers import EOS, PAD, SOS
from dragoman.decoding.config import StopRule
from dragoman.decoding.hypothesis import SUPPRESSED_TOKENS, Hypothesis
from dragoman.decoding.scorer import NEG_INF, Scorer, best_possible
from dragoman.models.kernels import topk


class BeamState(NamedTuple):
    """B sources, k open hypotheses of each, the W best complete ones of each, at most L tokens."""

    limits: Tensor  # (B,) maximum number of tokens, <eos> included
    max_complete: Tensor  # (B,) complete hypotheses after which a source is done
    totals: Tensor  # (B, k) Σ log p; −∞ where there is no hypothesis
    tokens: Tensor  # (B, k, L)
    token_scores: Tensor  # (B, k, L) log-probability of each token
    last: Tensor  # (B, k) the newest token
    length: Tensor  # () tokens written
    done: Tensor  # (B,)
    greedy: Tensor  # (B,) which open hypothesis is the greedy one; −1: none
    num_complete: Tensor  # (B,) hypotheses that were completed so far
    complete_scores: Tensor  # (B, W) best first; −∞ where there is none
    complete_tokens: Tensor  # (B, W, L)
    complete_token_scores: Tensor  # (B, W, L)
    divisors: Tensor  # (L + 1,) of Σ log p, by length (`Scorer.divisors`)

    def select(self, sources: Tensor) -> BeamState:
        return self._replace(
            **{
                name: tensor.index_select(0, sources)
                for name, tensor in self._asdict().items()
                if name not in ("length", "divisors")
            }
        )


def initial_state(
    limits: Tensor,
    size: tuple[int, int, int],
    max_complete: Tensor,
    divisors: Sequence[float],
    stop: StopRule,
    dtype: torch.dtype,
) -> BeamState:
    """The state of sizes (k, W, L) before the first token: one empty hypothesis per source, the other k − 1 are −∞.

    The empty hypothesis is greedy, unless the search ends when enough hypotheses are "complete".
    """
    device, sources = limits.device, limits.shape[0]
    width, complete, length = size
    totals = torch.full((sources, width), NEG_INF, dtype=dtype, device=device)
    totals[:, 0] = 0.0
    return BeamState(
        limits=limits,
        max_complete=max_complete,
        totals=totals,
        tokens=torch.full((sources, width, length), PAD, dtype=torch.long, device=device),
        token_scores=torch.zeros(sources, width, length, dtype=dtype, device=device),
        last=torch.full((sources, width), SOS, dtype=torch.long, device=device),
        length=torch.zeros((), dtype=torch.long, device=device),
        done=torch.zeros(sources, dtype=torch.bool, device=device),
        greedy=torch.full((sources,), -1 if stop == "complete" else 0, device=device),
        num_complete=torch.zeros(sources, dtype=torch.long, device=device),
        complete_scores=torch.full((sources, complete), NEG_INF, dtype=dtype, device=device),
        complete_tokens=torch.full((sources, complete, length), PAD, dtype=torch.long, device=device),
        complete_token_scores=torch.zeros(sources, complete, length, dtype=dtype, device=device),
        divisors=torch.tensor(divisors, dtype=dtype, device=device),
    )


class NextTokens(NamedTuple):
    """The best next tokens of every hypothesis, best first."""

    scores: Tensor  # (N, E) log-probabilities
    tokens: Tensor  # (N, E)
    eos_scores: Tensor  # (N, 1) log-probability of <eos>


def top_next_tokens(log_probabilities: Tensor, width: int) -> NextTokens:
    """The next tokens of log-probabilities (N, V) that can be among the best 2k candidates of their source.

    The tensor is changed: tokens that are never output become −∞.
    """
    log_probabilities[:, : len(SUPPRESSED_TOKENS)] = NEG_INF
    scores, tokens = topk(log_probabilities, num_next_tokens(width, log_probabilities.shape[1]))
    return NextTokens(scores, tokens, log_probabilities[:, EOS : EOS + 1])


def num_next_tokens(width: int, vocabulary: int) -> int:
    """How many next tokens of one hypothesis can be among the best 2k candidates of its source."""
    return min(2 * width, vocabulary)


class Candidates(NamedTuple):
    """The best continuations of every source, best first, and last the greedy one if it is not among them.

    All are (B, C), C = 2k + 1 where the vocabulary allows it.
    """

    rank_scores: Tensor  # what they were chosen by: totals, less a diversity penalty
    totals: Tensor  # Σ log p
    parents: Tensor  # the hypothesis that each continues
    tokens: Tensor
    token_scores: Tensor  # log-probability of the token
    may_complete: Tensor  # whether an <eos> here completes a hypothesis
    is_greedy: Tensor  # the greedy continuation of the greedy hypothesis

    @property
    def complete(self) -> Tensor:
        return (self.tokens == EOS) & self.may_complete


def top_candidates(state: BeamState, following: NextTokens) -> Candidates:
    """The best 2k candidates of every source; at its length limit only <eos> may follow."""
    sources, width = state.totals.shape
    each = following.scores.shape[1]
    at_limit = (state.limits <= state.length + 1).repeat_interleave(width)[:, None]  # (N, 1)
    eos_only = torch.full_like(following.scores, NEG_INF)
    eos_only[:, :1] = following.eos_scores
    scores = torch.where(at_limit, eos_only, following.scores).view(sources, width * each)
    tokens = following.tokens.masked_fill(at_limit, EOS).view(sources, width * each)
    count = min(2 * width, width * each)
    every = state.totals.repeat_interleave(each, 1) + scores
    totals, index = every.topk(count, 1)
    first = state.greedy.clamp(min=0)[:, None] * each  # the best token of the greedy hypothesis
    may_complete = (torch.arange(count, device=totals.device) < width).expand_as(totals)
    choice = add_greedy(totals, index, may_complete, every.gather(1, first), first, state.greedy >= 0)
    totals, index, may_complete, is_greedy = choice
    parents, tokens, scores = index // each, tokens.gather(1, index), scores.gather(1, index)
    return Candidates(totals, totals, parents, tokens, scores, may_complete, is_greedy)


class Choice(NamedTuple):
    """The candidates that a search looks at: all (B, C)."""

    rank_scores: Tensor
    flat_index: Tensor  # of hypothesis and token
    may_complete: Tensor
    is_greedy: Tensor


def add_greedy(
    scores: Tensor, index: Tensor, may_complete: Tensor, greedy_score: Tensor, greedy_index: Tensor, has_greedy: Tensor
) -> Choice:
    """The best candidates (B, C), and after them the greedy one (B, 1) if it is not among them.

    The greedy one may always complete. Without a greedy hypothesis, `has_greedy` (B,), the last candidate is −∞.
    """
    same = (index == greedy_index) & has_greedy[:, None]
    missing = has_greedy[:, None] & ~same.any(1, keepdim=True)
    return Choice(
        torch.cat([scores, greedy_score.masked_fill(~missing, NEG_INF)], 1),
        torch.cat([index, greedy_index], 1),
        torch.cat([may_complete | same, missing], 1),
        torch.cat([same, missing], 1),
    )


def open_candidates(rank_scores: Tensor, is_eos: Tensor, is_greedy: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The index (B, k) of the candidates that stay open, and which of them is greedy (B,), or −1.

    They are the best k that do not end. The greedy one takes the last place if it is not among them.
    """
    scores = rank_scores.masked_fill(is_eos, NEG_INF)
    kept = scores.sort(dim=1, descending=True, stable=True).indices[:, :width]
    stays = is_greedy & (scores > NEG_INF)  # (B, C), true at most once
    greedy = stays.int().argmax(1, keepdim=True)
    missing = stays.any(1, keepdim=True) & ~(kept == greedy).any(1, keepdim=True)
    kept = torch.cat([kept[:, :-1], torch.where(missing, greedy, kept[:, -1:])], 1)
    here = stays.gather(1, kept)
    return kept, torch.where(here.any(1), here.int().argmax(1), -1)


def update(
    state: BeamState, candidates: Candidates, *, n_best: int, stop: StopRule, coverage: Tensor | None = None
) -> tuple[BeamState, Tensor]:
    """The state after one step, and the index (B, k) of the candidates that stay open.

    Complete candidates compete with the complete hypotheses so far; the best k of the others stay open.
    """
    width, max_length = state.totals.shape[1], state.tokens.shape[2]
    length = state.length + 1
    newest = torch.arange(max_length, device=length.device) == state.length
    deep = candidates.parents[:, :, None].expand(-1, -1, max_length)
    tokens = torch.where(newest, candidates.tokens[:, :, None], state.tokens.gather(1, deep))  # (B, C, L)
    token_scores = torch.where(newest, candidates.token_scores[:, :, None], state.token_scores.gather(1, deep))
    is_eos = candidates.tokens == EOS
    all_scores = Scorer.score(candidates.totals, state.divisors.take(length), coverage)
    scores = torch.where(candidates.complete, all_scores, NEG_INF)
    # The older hypotheses come first, so that they win ties.
    every = torch.cat([state.complete_scores, scores], 1)
    order = every.sort(dim=1, descending=True, stable=True).indices[:, : state.complete_scores.shape[1]]
    complete_scores = every.gather(1, order)
    num_complete = state.num_complete + (scores > NEG_INF).sum(1)
    kept, greedy = open_candidates(candidates.rank_scores, is_eos, candidates.is_greedy, width)
    totals = candidates.totals.masked_fill(is_eos, NEG_INF).gather(1, kept)
    if stop == "certain":
        done = complete_scores[:, n_best - 1] >= best_possible(totals, state.limits, state.divisors)
    else:
        done = num_complete >= state.max_complete
    if stop == "ahead":
        open_scores = all_scores.masked_fill(is_eos, NEG_INF).gather(1, kept)
        done &= complete_scores[:, min(n_best, width) - 1] >= open_scores.amax(1)
        greedy_total = totals.gather(1, greedy.clamp(min=0)[:, None])
        greedy_settled = complete_scores[:, 0] >= best_possible(greedy_total, state.limits, state.divisors)
        done &= greedy_settled | (greedy < 0)
    # No hypothesis stays open at the limit, except from a broken model: NaN is never −∞ and would search for ever.
    done = state.done | done | (totals[:, 0] == NEG_INF) | (state.limits <= length)
    complete_index = order[:, :, None].expand(-1, -1, max_length)
    open_index = kept[:, :, None].expand(-1, -1, max_length)
    return state._replace(
        totals=totals.masked_fill(done[:, None], NEG_INF),
        tokens=tokens.gather(1, open_index),
        token_scores=token_scores.gather(1, open_index),
        last=candidates.tokens.gather(1, kept),
        length=length,
        done=done,
        greedy=greedy,
        num_complete=num_complete,
        complete_scores=complete_scores,
        complete_tokens=torch.cat([state.complete_tokens, tokens], 1).gather(1, complete_index),
        complete_token_scores=torch.cat([state.complete_token_scores, token_scores], 1).gather(1, complete_index),
    ), kept


def complete_hypotheses(state: BeamState, n_best: int, rows: Sequence[int] | None = None) -> list[list[Hypothesis]]:
    """The complete hypotheses of every source, or of those in some `rows`, as plain values, best first."""
    out = []
    tensors = (state.complete_scores, state.complete_tokens, state.complete_token_scores)
    if rows is not None:
        index = torch.tensor(rows, device=state.totals.device)
        tensors = tuple(tensor.index_select(0, index) for tensor in tensors)  # type: ignore[assignment]
    # NumPy makes lists three times as fast as torch, and a GPU waits for this.
    for row in zip(*(tensor[:, :n_best].cpu().numpy().tolist() for tensor in tensors), strict=True):
        hypotheses = []
        for score, tokens, token_scores in zip(*row, strict=True):
            if score > NEG_INF:
                size = tokens.index(EOS) + 1
                parts = tuple(token_scores[:size])
                hypotheses.append(Hypothesis(tuple(tokens[:size]), parts, sum(parts), score))
        out.append(hypotheses)
    return out
