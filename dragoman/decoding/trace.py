"""All candidates of a beam search, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dragoman.data.tokenizers import EOS
from dragoman.decoding.scorer import NEG_INF

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.decoding.beam_state import Candidates

KEPT, COMPLETE = "kept", "complete"
PRUNED, LATE = "worse than the beam", "ended, but outside the best"


class Node(NamedTuple):
    """One candidate."""

    number: int  # of this node in its source, from 1; 0 is the empty output
    parent: int
    step: int
    token: int
    log_probability: float
    score: float  # Σ log p from the start
    normalised: float  # its score if it were complete here
    fate: str  # kept, complete, or why the search dropped it
    group: int = 1  # of a diverse beam search


class Trace:
    """Filled by `beam_search(…, trace=Trace(sources))`: at each step the best 2k candidates of every source."""

    def __init__(self, sources: int) -> None:
        self.nodes: list[list[Node]] = [[] for _ in range(sources)]
        self._open: list[list[int]] = [[0] for _ in range(sources)]  # the nodes of the open hypotheses
        self._steps = 0

    def add(self, sources: Tensor, candidates: Candidates, scores: Tensor, kept: Tensor) -> None:
        """Record one step.

        `sources` (B',) are those still searched, `scores` (B', C) those of the candidates if they were complete, and
        `kept` (B', k) the index of the candidates that stay open.
        """
        self._steps += 1
        columns = (
            candidates.parents,
            candidates.tokens,
            candidates.token_scores,
            candidates.totals,
            scores,
            candidates.complete,
        )
        rows = zip(sources.tolist(), kept.tolist(), *(column.tolist() for column in columns), strict=True)
        for source, own_kept, *row in rows:
            numbers: list[int] = []
            nodes = self.nodes[source]
            for index, (parent, token, token_score, total, score, complete) in enumerate(zip(*row, strict=True)):
                numbers.append(len(nodes) + 1)
                if total == NEG_INF:
                    numbers[-1] = 0
                    continue
                fate = COMPLETE if complete else LATE if token == EOS else KEPT if index in own_kept else PRUNED
                before = self._open[source][parent]
                nodes.append(Node(len(nodes) + 1, before, self._steps, token, token_score, total, score, fate))
            self._open[source] = [numbers[index] for index in own_kept]

    def merge_groups(self, groups: Trace, count: int) -> None:
        """Take over the nodes of a search in which every source occurred `count` times, once for each group."""
        for source in range(len(self.nodes)):
            merged: list[Node] = []
            for group in range(count):
                before = len(merged)
                merged += [
                    node._replace(
                        number=before + node.number, parent=node.parent and before + node.parent, group=group + 1
                    )
                    for node in groups.nodes[source * count + group]
                ]
            self.nodes[source] = merged
