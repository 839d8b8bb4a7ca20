"""Exhaustive search: every output up to a length with its exact probability, where there are few enough.

It shows what any other search misses, and how much probability the listed outputs have together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dragoman.base import ConfigError, check_interrupted
from dragoman.data.tokenizers import EOS, SOS
from dragoman.decoding.hypothesis import SUPPRESSED_TOKENS, Hypothesis, Step
from dragoman.decoding.method import Request, distinct
from dragoman.decoding.method_settings import Exhaustive as Exhaustive
from dragoman.decoding.scorer import NEG_INF, Scorer

MAX_OUTPUTS = 500_000  # per source; about a minute
BLOCK_ROWS = 2048  # prefixes read at a time


@torch.no_grad()
def search_all_outputs(request: Request, length: int) -> list[list[Hypothesis]]:
    model = request.stepwise("exhaustive search")
    limit = length + 1
    if model.max_positions is not None:
        limit = min(limit, model.max_positions)
    scorer = Scorer.from_config(request.config)
    state = model.start(request.batch)
    sources = torch.arange(len(request.limits), device=request.limits.device)
    return [
        exhaustive_search(model.step, state.select(source[None]), limit, scorer, request.n_best, sources.device)
        for source in sources
    ]


def check_size(vocabulary: int, limit: int) -> None:
    """Refuse a search space that is too large, with a length that would fit."""
    outputs = sum(vocabulary**size for size in range(limit))
    if outputs > MAX_OUTPUTS:
        fits = max(size for size in range(limit) if sum(vocabulary**n for n in range(size + 1)) <= MAX_OUTPUTS)
        raise ConfigError(
            f"exhaustive search: found {outputs:.3g} outputs of up to {limit - 1} tokens over {vocabulary:,} words, "
            f"expected at most {MAX_OUTPUTS:,}; a length of {fits} fits"
        )


@torch.no_grad()
def exhaustive_search(
    step: Step, state: Any, limit: int, scorer: Scorer, n_best: int, device: torch.device
) -> list[Hypothesis]:
    """The n best of all outputs of one source with at most `limit` tokens, <eos> included.

    Prefixes are read in blocks, the longest first, so that few states are alive at a time.
    """
    outputs: list[Hypothesis] = []
    empty = torch.empty(1, 0, dtype=torch.long, device=device)
    first_row = torch.zeros(1, dtype=torch.long, device=device)
    stack: list[tuple[Any, Tensor, Tensor, Tensor]] = [(state, first_row, empty, empty.double())]
    words: Tensor | None = None
    while stack:
        check_interrupted()
        before, rows, tokens, scores = stack.pop()
        last = tokens[:, -1] if tokens.shape[1] else torch.full_like(rows, SOS)
        log_probabilities, after = step(last, before.select(rows))
        log_probabilities = log_probabilities.double()
        if words is None:
            vocabulary = torch.arange(log_probabilities.shape[1], device=device)
            words = vocabulary[~torch.isin(vocabulary, torch.tensor([*SUPPRESSED_TOKENS, EOS], device=device))]
            check_size(len(words), limit)
        complete_scores = torch.cat([scores, log_probabilities[:, EOS, None]], 1)
        for row, row_scores in zip(tokens.tolist(), complete_scores.tolist(), strict=True):
            hypothesis = scorer.hypothesis((*row, EOS), row_scores)
            if hypothesis.score != NEG_INF:
                outputs.append(hypothesis)
        if len(outputs) > 2 * n_best + BLOCK_ROWS:
            outputs = distinct(outputs, n_best)
        if tokens.shape[1] + 1 >= limit:
            continue
        options = log_probabilities[:, words]  # (N, W)
        rows, choice = (options > NEG_INF).nonzero(as_tuple=True)
        longer = torch.cat([tokens[rows], words[choice][:, None]], 1)
        longer_scores = torch.cat([scores[rows], options[rows, choice][:, None]], 1)
        blocks = zip(*(torch.split(tensor, BLOCK_ROWS) for tensor in (rows, longer, longer_scores)), strict=True)
        stack += [(after, *block) for block in blocks if len(block[0])]
    return distinct(outputs, n_best)
