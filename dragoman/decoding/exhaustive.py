"""Exhaustive search (FIELD H5): every output up to a length with its exact probability, where there are few enough.

It shows what any other search may miss, and how much probability the listed outputs have together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from dragoman.config.settings import Range, setting
from dragoman.data.tokenizers.base import EOS, SOS
from dragoman.decoding.hypothesis import NEVER_WRITTEN, Hypothesis, Step, divisor
from dragoman.decoding.methods import Request
from dragoman.errors import ConfigError

MOST_OUTPUTS = 500_000  # a source; a minute or so
ROWS = 2048  # prefixes read at a time


@dataclass(frozen=True)
class Exhaustive:
    """All outputs of at most `length` tokens, <eos> not counted."""

    kind: ClassVar[str] = "exhaustive"
    length: Annotated[int, Range(0, None)] = setting(4, help="most tokens of an output; there are words^length")

    def search(self, request: Request) -> list[list[Hypothesis]]:
        """The most probable outputs of every source, best first by the length penalty in force."""
        model = request.stepwise("exhaustive search")
        limit = self.length + 1
        if model.max_positions is not None:
            limit = min(limit, model.max_positions)
        with torch.no_grad():
            start = model.start(request.batch)
            sources = torch.arange(len(request.limits), device=request.limits.device)
            return [
                every_output(
                    model.step,
                    start.select(source[None]),
                    limit,
                    length_penalty=request.config.length_penalty,
                    normalisation=request.config.normalisation,
                    most=request.n_best,
                    device=sources.device,
                )
                for source in sources
            ]


def check_size(words: int, limit: int) -> None:
    """Refuse a space that is too large, and say what would fit."""
    outputs = sum(words**size for size in range(limit))
    if outputs > MOST_OUTPUTS:
        fits = max(size for size in range(limit) if sum(words**place for place in range(size + 1)) <= MOST_OUTPUTS)
        raise ConfigError(
            f"exhaustive search: found {outputs:.3g} outputs of up to {limit - 1} tokens over {words:,} words, "
            f"expected at most {MOST_OUTPUTS:,}; a length of {fits} fits"
        )


@torch.no_grad()
def every_output(
    step: Step,
    state: Any,
    limit: int,
    *,
    length_penalty: float,
    most: int,
    device: torch.device,
    normalisation: str = "power",
) -> list[Hypothesis]:
    """The best outputs of one source among all that are possible; limit counts <eos>.

    Prefixes are read in blocks, the deepest first, so that few states are kept at a time.
    """
    found: list[tuple[float, tuple[int, ...], tuple[float, ...]]] = []
    empty = torch.empty(1, 0, dtype=torch.long, device=device)
    origin = torch.zeros(1, dtype=torch.long, device=device)
    waiting: list[tuple[Any, Tensor, Tensor, Tensor]] = [(state, origin, empty, empty.double())]
    words: Tensor | None = None
    while waiting:
        before, origin, tokens, scores = waiting.pop()
        last = tokens[:, -1] if tokens.shape[1] else torch.full_like(origin, SOS)
        log_probabilities, after = step(last, before.select(origin))
        log_probabilities = log_probabilities.double()
        if words is None:
            vocabulary = torch.arange(log_probabilities.shape[1], device=device)
            words = vocabulary[~torch.isin(vocabulary, torch.tensor([*NEVER_WRITTEN, EOS], device=device))]
            check_size(len(words), limit)
        size = tokens.shape[1] + 1
        ended = torch.cat([scores, log_probabilities[:, EOS, None]], 1)
        for text, parts in zip(tokens.tolist(), ended.tolist(), strict=True):
            total = sum(parts)
            if total != float("-inf"):
                found.append((total / divisor(size, length_penalty, normalisation), (*text, EOS), tuple(parts)))
        if len(found) > 2 * most + ROWS:
            found = best(found, most)
        if size >= limit:
            continue
        options = log_probabilities[:, words]  # (N, W)
        rows, which = (options > float("-inf")).nonzero(as_tuple=True)
        longer = torch.cat([tokens[rows], words[which][:, None]], 1)
        longer_scores = torch.cat([scores[rows], options[rows, which][:, None]], 1)
        blocks = zip(*(torch.split(part, ROWS) for part in (rows, longer, longer_scores)), strict=True)
        waiting += [(after, *block) for block in blocks if len(block[0])]
    return [Hypothesis(tokens, parts, sum(parts), rank) for rank, tokens, parts in best(found, most)]


def best(found: list[Any], most: int) -> list[Any]:
    """The first few by rank."""
    return sorted(found, key=lambda one: (-one[0], one[1]))[:most]
