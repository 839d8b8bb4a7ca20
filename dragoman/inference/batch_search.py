"""The search of a neural model over many sources, in batches of like lengths."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dragoman.data import Batch, Collator, batches_by_length
from dragoman.decoding import Hypothesis, Method, SearchConfig, Trace, search
from dragoman.decoding.constraints import ConstraintAutomaton
from dragoman.inference.pipeline import Row
from dragoman.models import decodes
from dragoman.models.kernels import map_batches

# Multiplications of a decoding step that are worth a thread of its own. In a smaller step most of the time goes into
# Python, which threads take in turns: two half batches take up to twice as long as a whole one.
WORTH_A_THREAD = 2e8
Automata = Sequence[ConstraintAutomaton | None]
Results = Iterator[tuple[int, list[Hypothesis]]]  # (index of a source, hypotheses)


@dataclass(frozen=True)
class BatchSearch:
    """A model, and how a call searches with it."""

    model: Any
    device: torch.device
    collator: Collator
    config: SearchConfig
    length_ratio: float
    n_best: int
    batch_size: int
    method: Method | None
    text: Callable[[Sequence[int]], str]  # of token ids

    def results(self, sources: Sequence[Any], automata: Automata | None, traced: Sequence[Row]) -> Results:
        """The hypotheses of all sources, batch after batch; the rows in `traced` get their traces."""
        size, workers = self.batch_size, 1
        plain = automata is None and not traced and self.method is None
        if plain and self.device.type == "cpu" and decodes(self.model) == "stepwise":
            workers = self._workers(len(sources))
            rounds = math.ceil(len(sources) / (workers * size))
            size = max(1, math.ceil(len(sources) / (workers * max(1, rounds))))  # no core waits for the last batch

        def found(numbered: tuple[list[int], Batch]) -> list[tuple[int, list[Hypothesis]]]:
            return self._search_batch(*numbered, automata, traced)

        batches = batches_by_length(sources, size, self.collator, longest_first=workers > 1)
        for results in map_batches(found, batches, workers) if workers > 1 else map(found, batches):
            yield from results

    def _workers(self, sources: int) -> int:
        """How many cores search a batch each; a batch is shared among cores only where its steps are large."""
        workers = min(torch.get_num_threads(), sources)
        if workers > 1 and sources <= self.batch_size:
            step = sources * self.config.beam * sum(parameter.numel() for parameter in self.model.parameters())
            workers = min(workers, int(step / WORTH_A_THREAD))
        return max(1, workers)

    def _search_batch(
        self, indices: list[int], batch: Batch, automata: Automata | None, traced: Sequence[Row]
    ) -> list[tuple[int, list[Hypothesis]]]:
        trace = Trace(len(indices)) if traced else None
        hypotheses = search(
            self.model,
            batch.to(self.device),
            self.config,
            self.length_ratio,
            self.n_best,
            method=self.method,
            text=self.text,
            constraints=None if automata is None else [automata[index] for index in indices],
            trace=trace,
        )
        if trace is not None:
            for index, nodes in zip(indices, trace.nodes, strict=True):
                traced[index].trace = nodes
        return list(zip(indices, hypotheses, strict=True))
