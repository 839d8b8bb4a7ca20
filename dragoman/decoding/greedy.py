"""One hypothesis per source, one token after another: greedy search (FIELD H1) and whatever else chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from dragoman.data.tokenizers.base import EOS, SOS
from dragoman.decoding.hypothesis import Hypothesis, Step, allowed, divisor
from dragoman.kernels.topk import first_best

# log-probabilities (B, V), which sources they are of (B,), how many tokens then stand → tokens (B,)
Choose = Callable[[Tensor, Tensor, int], Tensor]
End = Literal["eos", "cut", "limit"]


def most_probable(log_probabilities: Tensor, place: Tensor, length: int) -> Tensor:
    """The greedy choice."""
    return first_best(log_probabilities)


@torch.no_grad()
def follow(
    step: Step,
    state: Any,
    limits: Tensor,  # (B,) most tokens per source, <eos> included
    *,
    choose: Choose = most_probable,
    length_penalty: float = 1.0,
    normalisation: str = "power",
    end: End = "eos",
) -> list[Hypothesis]:
    """Write until the end; finished sources leave the batch.

    The end is <eos>, which at the limit is the only choice; or <eos> or the limit, whatever comes first ("cut"); or
    the limit alone ("limit"), for running text goes on after a line.
    """
    rows = limits.shape[0]
    place = torch.arange(rows, device=limits.device)  # which source each live row is
    tokens = torch.full_like(limits, SOS)
    written: list[list[int]] = [[] for _ in range(rows)]
    scores: list[list[float]] = [[] for _ in range(rows)]
    soonest = int(limits.min()) if rows else 0
    length = 0
    while len(place):
        log_probabilities, state = step(tokens, state)
        length += 1
        last = limits[place] <= length if length >= soonest else None
        tokens = choose(allowed(log_probabilities, last if end == "eos" else None), place, length)
        chosen = log_probabilities.gather(1, tokens[:, None])[:, 0]
        for row, token, score in zip(place.tolist(), tokens.tolist(), chosen.tolist(), strict=True):
            written[row].append(token)
            scores[row].append(score)
        going = torch.ones_like(tokens, dtype=torch.bool) if last is None else ~last
        if end != "limit":
            going &= tokens != EOS
        if not going.all():
            kept = going.nonzero()[:, 0]
            place, tokens = place[kept], tokens[kept]
            if len(kept):
                state = state.select(kept)
    return [
        Hypothesis(tuple(row), tuple(parts), sum(parts), sum(parts) / divisor(len(row), length_penalty, normalisation))
        for row, parts in zip(written, scores, strict=True)
    ]
