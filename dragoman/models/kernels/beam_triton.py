"""Triton kernels for the step of a beam search: choose the best next tokens of every hypothesis, then update the beam.

Imported on GPUs only.
"""

# ruff: noqa: N803  constants of a kernel are spelled as constants
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator, misc, import-not-found"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 64
STOP_RULES = ("complete", "ahead", "certain")  # constants of the kernel


@triton.jit
def _heads(
    scores, heads, totals, size, stride, never, chunks,
    CHUNKS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The best of every chunk of a row, and the logarithm of the sum of all exponentials."""
    row = tl.program_id(0).to(tl.int64)
    chunk, inside = tl.arange(0, CHUNKS), tl.arange(0, WIDE)
    column = chunk[:, None] * WIDE + inside[None, :]
    every = tl.load(scores + row * stride + column, mask=column < size, other=float("-inf")).to(tl.float32)
    highest = tl.max(tl.max(every, 1), 0)
    tl.store(totals + row, highest + tl.log(tl.sum(tl.sum(tl.exp(every - highest), 1), 0)))
    best = tl.max(tl.where(column < never, float("-inf"), every), 1)
    tl.store(heads + row * chunks + chunk, best, mask=chunk < chunks)


@triton.jit
def _best(
    scores, heads, totals, values, tokens, ends, size, stride, never, end, count, chunks,
    CHUNKS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """By one warp a row: the best lies in the chunk with the best head, whose next best then becomes its head."""
    row = tl.program_id(0).to(tl.int64)
    scores += row * stride
    chunk, inside = tl.arange(0, CHUNKS), tl.arange(0, WIDE)
    total = tl.load(totals + row)
    first = tl.load(heads + row * chunks + chunk, mask=chunk < chunks, other=float("-inf"))
    tl.store(ends + row, tl.load(scores + end).to(tl.float32) - total)
    places = tl.full((CHUNKS,), -1, dtype=tl.int32)  # where the newest of every chunk stands, if it equals its head
    for place in range(count):
        best = tl.max(first, 0)
        winner = tl.min(tl.where(first == best, chunk, CHUNKS - 1), 0)  # the first of equals
        before = tl.sum(tl.where(chunk == winner, places, 0), 0)
        mine = winner * WIDE + inside
        part = tl.load(scores + mine, mask=mine < size, other=float("-inf")).to(tl.float32)
        part = tl.where(mine < never, float("-inf"), part)
        token = tl.min(tl.where((part == best) & (mine > before), mine, size - 1), 0)
        tl.store(values + row * count + place, best - total)
        tl.store(tokens + row * count + place, token.to(tl.int64))
        # Still to be had of this chunk: what is less, or as much and stands behind.
        same = tl.max(((part == best) & (mine > token)).to(tl.int32), 0) > 0
        less = tl.max(tl.where(part < best, part, float("-inf")), 0)
        first = tl.where(chunk == winner, tl.where(same, best, less), first)
        places = tl.where(chunk == winner, tl.where(same, token, -1), places)


def best_next(scores: Tensor, count: int, never: int, end: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of unnormalised scores (N, V) the `count` best tokens at or after column `never`, and what `end` is worth.

    → log-probabilities (N, count) in float32, tokens (N, count), log-probabilities (N, 1) of `end`.
    """
    (rows, size), device = scores.shape, scores.device
    chunks = triton.cdiv(size, CHUNK)
    heads, totals = torch.empty(rows, chunks, device=device), torch.empty(rows, device=device)
    values, ends = torch.empty(rows, count, device=device), torch.empty(rows, 1, device=device)
    tokens = torch.empty(rows, count, dtype=torch.long, device=device)
    sizes = {"CHUNKS": triton.next_power_of_2(chunks), "WIDE": CHUNK}
    warps = max(4, min(32, sizes["CHUNKS"] // 32))
    _heads[(rows,)](scores, heads, totals, size, scores.stride(0), never, chunks, **sizes, num_warps=warps)
    _best[(rows,)](
        scores, heads, totals, values, tokens, ends, size, scores.stride(0), never, end, count, chunks, **sizes,
        num_warps=1,
    )  # fmt: skip
    return values, tokens, ends


@triton.jit
def _update(
    values, nexts, ends, limits, enough, totals, tokens, scores, last, lengths, done, greedy, ended, ranks, complete,
    parts, divisors, origins, fed, width, each, looked, kept, longest, most, end,
    EVERY: tl.constexpr, LOOKED: tl.constexpr, WIDTH: tl.constexpr, KEPT: tl.constexpr, LONGEST: tl.constexpr,
    STOP: tl.constexpr,
):  # fmt: skip
    """`top_candidates` and `update` of decoding/beam_state.py, one program per source."""
    source = tl.program_id(0).to(tl.int64)
    nothing = float("-inf")
    length, limit = tl.load(lengths), tl.load(limits + source)
    ending = limit <= length + 1
    # The best continuations.
    i = tl.arange(0, EVERY)
    inside = i < width * each
    row = source * width + i // each
    value = tl.load(values + row * each + i % each, mask=inside, other=nothing)
    token = tl.load(nexts + row * each + i % each, mask=inside, other=0).to(tl.int32)
    over = tl.load(ends + row, mask=inside, other=nothing)
    value = tl.where(ending, tl.where(i % each == 0, over, nothing), value)
    token = tl.where(ending, end, token)
    sums = tl.load(totals + row, mask=inside, other=nothing) + value
    sums = tl.where(inside, sums, nothing)
    c = tl.arange(0, LOOKED)
    best = tl.full((LOOKED,), nothing, dtype=tl.float32)
    part = tl.full((LOOKED,), nothing, dtype=tl.float32)
    origin = tl.zeros((LOOKED,), dtype=tl.int32)
    chosen = tl.full((LOOKED,), end, dtype=tl.int32)
    at_greedy = tl.zeros((LOOKED,), dtype=tl.int32)  # whether it is the best continuation of the greedy hypothesis
    slot = tl.load(greedy + source).to(tl.int32)
    first = tl.where(slot >= 0, slot * each, EVERY)
    for place in range(looked):
        highest = tl.max(sums, 0)
        at = tl.min(tl.where(sums == highest, i, EVERY - 1), 0)
        best = tl.where(c == place, highest, best)
        part = tl.where(c == place, tl.max(tl.where(i == at, value, nothing), 0), part)
        origin = tl.where(c == place, at // each, origin)
        chosen = tl.where(c == place, tl.max(tl.where(i == at, token, 0), 0), chosen)
        at_greedy = tl.where(c == place, tl.where(at == first, 1, 0), at_greedy)
        sums = tl.where(i == at, nothing, sums)
    # The greedy one behind them, unless it is among them.
    at_greedy = tl.where(best > nothing, at_greedy, 0)
    extra = c == tl.where(slot >= 0, tl.where(tl.max(at_greedy, 0) > 0, LOOKED, looked), LOOKED)
    best = tl.where(extra, tl.max(tl.where(i == first, sums, nothing), 0), best)
    part = tl.where(extra, tl.max(tl.where(i == first, value, nothing), 0), part)
    origin = tl.where(extra, slot, origin)
    chosen = tl.where(extra, tl.max(tl.where(i == first, token, 0), 0), chosen)
    at_greedy = tl.where(extra & (best > nothing), 1, at_greedy)
    # Those that end among the first, or greedily, and what each would be worth.
    stops = chosen == end
    now_divisor = tl.load(divisors + length + 1)
    worth = tl.where(stops & ((c < width) | (at_greedy != 0)), best / now_divisor, nothing)
    count = tl.load(ended + source) + tl.sum((worth > nothing).to(tl.int32), 0)
    tl.store(ended + source, count)
    # Complete ones: the best of the old and the new, the old first on equal terms.
    w = tl.arange(0, KEPT)
    old = tl.load(ranks + source * kept + w, mask=w < kept, other=nothing)
    rank = tl.full((KEPT,), nothing, dtype=tl.float32)
    stays = tl.zeros((KEPT,), dtype=tl.int32)  # whether it is an old one
    which = tl.zeros((KEPT,), dtype=tl.int32)
    for place in range(kept):
        ahead, fresh = tl.max(old, 0), tl.max(worth, 0)
        keeps = ahead >= fresh
        highest = tl.maximum(ahead, fresh)
        from_old = tl.min(tl.where(old == ahead, w, KEPT - 1), 0)
        from_new = tl.min(tl.where(worth == fresh, c, LOOKED - 1), 0)
        here = w == place
        rank = tl.where(here, highest, rank)
        stays = tl.where(here, keeps.to(tl.int32), stays)
        which = tl.where(here, tl.where(keeps, from_old, from_new), which)
        old = tl.where(w == tl.where(keeps, from_old, KEPT), nothing, old)
        worth = tl.where(c == tl.where(keeps, LOOKED, from_new), nothing, worth)
    # Those that go on.
    k = tl.arange(0, WIDTH)
    goes = (stops == 0) & (c <= looked)
    order = tl.cumsum(goes.to(tl.int32), 0) - 1
    stays_greedy = goes & (at_greedy != 0)
    rank_greedy = tl.max(tl.where(stays_greedy, order, -1), 0)
    order = tl.where(order == tl.where(rank_greedy >= width, width - 1, LOOKED), LOOKED, order)
    order = tl.where(stays_greedy, tl.minimum(order, width - 1), order)  # it takes the last place if it is behind
    slot = tl.minimum(rank_greedy, width - 1)
    tl.store(greedy + source, slot.to(tl.int64))
    match = goes[None, :] & (order[None, :] == k[:, None])  # (WIDTH, LOOKED)
    total = tl.max(tl.where(match, best[None, :], nothing), 1)
    came = tl.sum(tl.where(match, origin[None, :], 0), 1)
    wrote = tl.sum(tl.where(match, chosen[None, :], 0), 1)
    gave = tl.max(tl.where(match, part[None, :], nothing), 1)
    hopeful = tl.max(tl.where(k < width, total, nothing), 0)
    if STOP == 2:  # certain
        enough_now = tl.max(tl.where(w == most - 1, rank, nothing), 0) >= hopeful / tl.load(divisors + limit)
    else:
        enough_now = count >= tl.load(enough + source)
    if STOP == 1:  # ahead
        last_place = tl.minimum(most, width) - 1
        worst, lead = tl.max(tl.where(w == last_place, rank, nothing), 0), tl.max(tl.where(w == 0, rank, nothing), 0)
        enough_now = tl.where(worst >= hopeful / now_divisor, enough_now.to(tl.int32), 0)
        greedy_best = tl.max(tl.where(k == slot, total, nothing), 0) / tl.load(divisors + limit)
        enough_now = tl.where(lead >= greedy_best, enough_now, 0) != 0  # −∞ without a greedy hypothesis
    finished = tl.where(enough_now, 1, tl.load(done + source).to(tl.int32))
    finished = tl.where(hopeful == nothing, 1, finished)
    finished = tl.where(ending, 1, finished)
    # Histories are read before any is overwritten.
    step = tl.arange(0, LONGEST)[None, :]
    now = step == length
    real = (step < longest) & (w < kept)[:, None]
    stayed = (stays != 0)[:, None]
    here = (source * kept + tl.where(stays != 0, which, 0))[:, None] * longest + step
    match = (which[:, None] == c[None, :]) & (stays == 0)[:, None]  # (KEPT, LOOKED)
    parent = tl.sum(tl.where(match, origin[None, :], 0), 1)
    there = (source * width + parent)[:, None] * longest + step
    written = tl.load(complete + here, mask=real & stayed, other=0) + tl.load(
        tokens + there, mask=real & (stayed == 0), other=0
    )
    costs = tl.load(parts + here, mask=real & stayed, other=0.0) + tl.load(
        scores + there, mask=real & (stayed == 0), other=0.0
    )
    added = tl.max(tl.where(match, part[None, :], nothing), 1)[:, None]
    written = tl.where(now & (stayed == 0), end, written)
    costs = tl.where(now & (stayed == 0), added, costs)
    going = (step < longest) & (k < width)[:, None]
    there = (source * width + came)[:, None] * longest + step
    further = tl.where(now, wrote[:, None].to(tl.int64), tl.load(tokens + there, mask=going, other=0))
    spent = tl.where(now, gave[:, None], tl.load(scores + there, mask=going, other=0.0))
    tl.debug_barrier()
    here = (source * kept + w)[:, None] * longest + step
    tl.store(complete + here, written, mask=real)
    tl.store(parts + here, costs, mask=real)
    tl.store(ranks + source * kept + w, rank, mask=w < kept)
    mine = source * width + k
    there = mine[:, None] * longest + step
    tl.store(tokens + there, further, mask=going)
    tl.store(scores + there, spent, mask=going)
    tl.store(totals + mine, tl.where(finished != 0, nothing, total), mask=k < width)
    tl.store(last + mine, wrote.to(tl.int64), mask=k < width)
    tl.store(fed + mine, wrote.to(tl.int64), mask=k < width)
    tl.store(origins + mine, source * width + came, mask=k < width)
    tl.store(done + source, finished.to(tl.int8))


def update(state: Any, following: Any, parents: Tensor, fed: Tensor, *, n_best: int, stop: str, end: int) -> None:
    """Change a `BeamState` to the one after a step, in place, from the best `NextTokens` of every hypothesis.

    Also written: the hypothesis that each one continues, `parents` (N,), and the token that it reads next, `fed` (N,).
    """
    sources, width, longest = state.tokens.shape
    kept, each = state.complete_scores.shape[1], following.scores.shape[1]
    looked = min(2 * width, width * each)
    power = triton.next_power_of_2
    sizes = {"EVERY": power(width * each), "LOOKED": power(looked + 1), "WIDTH": power(width), "KEPT": power(kept)}
    large = max(sizes["WIDTH"], sizes["KEPT"]) * power(longest) > 1024
    _update[(sources,)](
        following.scores, following.tokens, following.eos_scores, state.limits, state.max_complete, state.totals,
        state.tokens, state.token_scores, state.last, state.length, state.done.view(torch.int8), state.greedy,
        state.num_complete, state.complete_scores, state.complete_tokens, state.complete_token_scores, state.divisors,
        parents, fed, width, each, looked, kept, longest, n_best, end,
        **sizes, LONGEST=power(longest), STOP=STOP_RULES.index(stop), num_warps=4 if large else 1,
    )  # fmt: skip
    state.length.add_(1)
