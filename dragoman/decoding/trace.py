"""Everything a beam search looked at, as data (FIELD H6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from dragoman.data.tokenizers.base import EOS

NOTHING = float("-inf")
KEPT, COMPLETE = "kept", "complete"
PRUNED, LATE = "worse than the beam", "ended, but outside the best"


class Node(NamedTuple):
    """One continuation that was looked at."""

    number: int  # of this node in its source, from 1; 0 is the empty output
    parent: int
    step: int
    token: int
    log_probability: float
    score: float  # the sum from the start
    normalised: float  # what it would be ranked by if it were complete here
    fate: str  # kept, complete, or why it was not
    group: int = 1  # which group of a diverse beam looked at it

    @property
    def kept(self) -> bool:
        """Whether the search went on from it or set it aside as complete."""
        return self.fate in (KEPT, COMPLETE)


class Trace:
    """Filled by `beam(…, trace=Trace(sources))`: at each step the 2·width best continuations of every source."""

    def __init__(self, sources: int) -> None:
        self.nodes: list[list[Node]] = [[] for _ in range(sources)]
        self._live: list[list[int]] = [[0] for _ in range(sources)]  # nodes that the hypotheses stand on
        self._steps = 0

    def add(
        self,
        place: Tensor,  # (B',) which sources are still searched
        origin: Tensor,  # (B', C) which hypothesis each continuation comes from
        token: Tensor,
        part: Tensor,
        total: Tensor,
        worth: Tensor,
        complete: Tensor,
        kept: Tensor,  # (B', k) which continuations live on
    ) -> None:
        """One step of the search."""
        self._steps += 1
        columns = (origin, token, part, total, worth, complete)
        rows = zip(place.tolist(), kept.tolist(), *(column.tolist() for column in columns), strict=True)
        for source, lives, *row in rows:
            numbers: list[int] = []
            nodes = self.nodes[source]
            for rank, (parent, symbol, log_probability, score, normalised, done) in enumerate(zip(*row, strict=True)):
                numbers.append(len(nodes) + 1)
                if score == NOTHING:
                    numbers[-1] = 0
                    continue
                is_end = symbol == EOS
                fate = COMPLETE if done else LATE if is_end else KEPT if rank in lives else PRUNED
                before = self._live[source][parent]
                nodes.append(
                    Node(len(nodes) + 1, before, self._steps, symbol, log_probability, score, normalised, fate)
                )
            self._live[source] = [numbers[one] for one in lives]

    def join(self, groups: Trace, count: int) -> None:
        """Take over the nodes of a search in which every source stood so many times, once for each group."""
        for source in range(len(self.nodes)):
            joined: list[Node] = []
            for group in range(count):
                before = len(joined)
                joined += [
                    node._replace(
                        number=before + node.number, parent=node.parent and before + node.parent, group=group + 1
                    )
                    for node in groups.nodes[source * count + group]
                ]
            self.nodes[source] = joined

    def of(self, source: int) -> Trace:
        """The trace of one source alone."""
        alone = Trace(1)
        alone.nodes = [self.nodes[source]]
        return alone

    def as_table(self, source: int, pieces: Callable[[Sequence[int]], list[str]]) -> list[dict[str, Any]]:
        """The nodes of a source for JSON, each with its token's piece."""
        return [{**node._asdict(), "piece": pieces([node.token])[0]} for node in self.nodes[source]]
