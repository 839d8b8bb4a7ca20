"""Greedy search, and the same loop with any other choice of the next token (sampling.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from dragoman.base import check_interrupted
from dragoman.data.tokenizers import EOS, SOS
from dragoman.decoding.hypothesis import Hypothesis, Step, suppress_tokens
from dragoman.decoding.scorer import Scorer
from dragoman.models.kernels import argmax

# log-probabilities (B, V), sources (B,) they belong to, number of this token from 1 → tokens (B,)
TokenChooser = Callable[[Tensor, Tensor, int], Tensor]
StopAt = Literal["eos", "eos-or-limit", "limit"]


def argmax_token(log_probabilities: Tensor, sources: Tensor, length: int) -> Tensor:
    """The most probable token, the greedy choice."""
    return argmax(log_probabilities)


@torch.no_grad()
def greedy_search(
    step: Step,
    state: Any,
    limits: Tensor,  # (B,) maximum number of tokens per source, <eos> included
    scorer: Scorer = Scorer(),  # noqa: B008  (frozen)
    *,
    choose: TokenChooser = argmax_token,
    stop_at: StopAt = "eos",
) -> list[Hypothesis]:
    """One hypothesis per source, token by token; finished sources leave the batch.

    `stop_at`: "eos" ends every output with <eos>, the only choice at the limit; "eos-or-limit" cuts the output at
    the limit; "limit" goes on after <eos>, as running text does after a line.
    """
    rows = limits.shape[0]
    sources = torch.arange(rows, device=limits.device)  # which source each row is
    tokens = torch.full_like(limits, SOS)
    written: list[list[int]] = [[] for _ in range(rows)]
    scores: list[list[float]] = [[] for _ in range(rows)]
    first_limit = int(limits.min()) if rows else 0
    length = 0
    while len(sources):
        check_interrupted()
        log_probabilities, state = step(tokens, state)
        length += 1
        at_limit = limits[sources] <= length if length >= first_limit else None
        tokens = choose(suppress_tokens(log_probabilities, at_limit if stop_at == "eos" else None), sources, length)
        chosen = log_probabilities.gather(1, tokens[:, None])[:, 0]
        for source, token, score in zip(sources.tolist(), tokens.tolist(), chosen.tolist(), strict=True):
            written[source].append(token)
            scores[source].append(score)
        going = torch.ones_like(tokens, dtype=torch.bool) if at_limit is None else ~at_limit
        if stop_at != "limit":
            going &= tokens != EOS
        if not going.all():
            index = going.nonzero()[:, 0]
            sources, tokens = sources[index], tokens[index]
            if len(index):
                state = state.select(index)
    return [scorer.hypothesis(row, row_scores) for row, row_scores in zip(written, scores, strict=True)]
