"""Diverse beam search: a beam in groups that avoid each other's tokens (Vijayakumar et al. 2016).

Each group is a beam search of its own, as if its source were in the batch once per group. The groups interact in one
way: before a group chooses, every token costs it `Scorer.diversity` for each hypothesis of an earlier group of the
same source that continues with this token at this step (the paper's Hamming diversity). The cost decides what is
chosen; scores stay those of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, zip_longest

import torch
from torch import Tensor

from dragoman.base import ConfigError
from dragoman.data.tokenizers import EOS
from dragoman.decoding.beam_state import Choice, open_candidates
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.scorer import NEG_INF, Scorer

Chooser = Callable[[Tensor, Tensor, Tensor | None], Choice]  # rows (B',) of the batch, scores (B', k, V), fallback


def group_width(beam: int, groups: int) -> int:
    if beam % groups:
        raise ConfigError(f"search.beam_groups: found {groups}, expected a divisor of the beam of {beam}")
    return beam // groups


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
