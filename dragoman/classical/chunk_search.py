"""Beam search over sequences of chunks: many sources at once, one source token after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dragoman.classical.model import Tokens
from dragoman.classical.ngram import NGramModel
from dragoman.classical.rows import Bools, Floats, Ints, Ragged, join_rows, take_rows
from dragoman.data.tokenizers.base import EOS, UNK
from dragoman.progress import check_interrupted

BATCH = 128  # sources searched together
FIRST = EOS + 1


class ChunkTable:
    """The chunks by their source part, and the n-gram model over them.

    A source token that begins no chunk gets one of its own, with the probability of an unknown chunk.
    """

    def __init__(self, model: NGramModel, left: Ragged, right: Ragged, same: Sequence[int]) -> None:
        self.model = model
        self.targets: list[Tokens] = list(right)
        by_source: dict[Tokens, list[int]] = {}
        for index, part in enumerate(left):
            by_source.setdefault(part, []).append(index)
        for token, copy in enumerate(same):
            if (token,) not in by_source:
                by_source[token,] = [len(self.targets)]
                self.targets.append(() if copy < 0 else (copy,))
        self.by_source = {part: np.array(chunks, np.int64) for part, chunks in by_source.items()}
        self.sizes = range(1, max(map(len, by_source), default=1) + 1)
        self.grams = np.full(len(self.targets), UNK, np.int64)  # what the n-gram model reads
        self.grams[: len(left)] = FIRST + np.arange(len(left))
        self.target_sizes = np.array([len(target) for target in self.targets], np.int64)

    def candidates(self, source: Tokens, place: int) -> list[tuple[int, Ints]]:
        """For every size the chunks that match the source from a place on."""
        parts = ((size, source[place : place + size]) for size in self.sizes)
        return [(size, self.by_source[part]) for size, part in parts if len(part) == size and part in self.by_source]


class Frontier(NamedTuple):
    """Hypotheses at one source position of many sources."""

    rows: Ints  # (H,) index of the source
    scores: Floats  # (H,)
    contexts: list[Ints]  # by order n − 1: (H,) places of the last n-grams; −1: unknown
    parents: Ints  # (H,) index among all hypotheses
    chunks: Ints  # (H,)
    written: Ints  # (H,) target tokens


def search_chunks(
    table: ChunkTable, sources: Sequence[Tokens], width: int, n_best: int, targets: Sequence[Tokens] | None = None
) -> list[list[tuple[Tokens, float]]]:
    """The best outputs of each source with their scores; with `targets` the score of each target alone, or none."""
    out: list[list[tuple[Tokens, float]]] = [[]] * len(sources)
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    for first in range(0, len(order), BATCH):
        indices = order[first : first + BATCH]
        own_targets = None if targets is None else [targets[index] for index in indices]
        searched = ChunkSearch(table, [sources[index] for index in indices], width, n_best, own_targets)
        for index, outputs in zip(indices, searched.run(), strict=True):
            out[index] = outputs
    return out


class ChunkSearch:
    """The search of one batch."""

    def __init__(
        self, table: ChunkTable, sources: list[Tokens], width: int, n_best: int, targets: list[Tokens] | None
    ) -> None:
        self.table, self.sources, self.width, self.n_best, self.targets = table, sources, width, n_best, targets
        self.model = table.model
        self.parents: list[Ints] = []  # of all hypotheses so far, in blocks
        self.chunks: list[Ints] = []
        self.count = 0

    def run(self) -> list[list[tuple[Tokens, float]]]:
        length = max((len(source) for source in self.sources), default=0)
        start = np.arange(len(self.sources))
        contexts = self.model.first_contexts(len(start))
        nothing = np.full(len(start), -1, np.int64)
        waiting: dict[int, list[Frontier]] = {
            0: [Frontier(start, np.zeros(len(start)), contexts, nothing, nothing, np.zeros(len(start), np.int64))]
        }
        ended: list[list[tuple[float, int]]] = [[] for _ in self.sources]
        for place in range(length + 1):
            check_interrupted()
            if place not in waiting:
                continue
            frontier = self.prune(join_rows(waiting.pop(place)))
            numbers = self.count + np.arange(len(frontier.rows))
            self.parents.append(frontier.parents)
            self.chunks.append(frontier.chunks)
            self.count += len(numbers)
            done = np.array([len(self.sources[row]) == place for row in frontier.rows.tolist()], bool)
            self.finish(frontier, numbers, done, ended)
            for size, more in self.grow(frontier, numbers, place):
                waiting.setdefault(place + size, []).append(more)
        return [self.outputs(hypotheses) for hypotheses in ended]

    def finish(self, frontier: Frontier, numbers: Ints, done: Bools, ended: list[list[tuple[float, int]]]) -> None:
        """Add the end of the sequence to hypotheses that have read their source."""
        if self.targets is not None:
            lengths = np.array([len(target) for target in self.targets])
            done = done & (frontier.written == lengths[frontier.rows])
        if not done.any():
            return
        contexts = [context[done] for context in frontier.contexts]
        logs, _ = self.model.advance(contexts, np.full(int(done.sum()), EOS))
        scores = frontier.scores[done] + logs
        for row, score, number in zip(
            frontier.rows[done].tolist(), scores.tolist(), numbers[done].tolist(), strict=True
        ):
            ended[row].append((score, number))

    def grow(self, frontier: Frontier, numbers: Ints, place: int) -> list[tuple[int, Frontier]]:
        by_row = {row: self.table.candidates(self.sources[row], place) for row in set(frontier.rows.tolist())}
        pieces: dict[int, list[tuple[Ints, Ints]]] = {}  # size → (hypotheses, chunks)
        for index, row in enumerate(frontier.rows.tolist()):
            for size, chunks in by_row[row]:
                pieces.setdefault(size, []).append((np.full(len(chunks), index), chunks))
        out = []
        for size, parts in pieces.items():
            hypotheses, chunks = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
            written = frontier.written[hypotheses]
            if self.targets is not None:
                keep = self.matching(frontier.rows[hypotheses], written, chunks)
                hypotheses, chunks, written = hypotheses[keep], chunks[keep], written[keep]
            if not len(hypotheses):
                continue
            contexts = [context[hypotheses] for context in frontier.contexts]
            logs, after = self.model.advance(contexts, self.table.grams[chunks])
            scores, written = frontier.scores[hypotheses] + logs, written + self.table.target_sizes[chunks]
            more = Frontier(frontier.rows[hypotheses], scores, after, numbers[hypotheses], chunks, written)
            out.append((size, more))
        return out

    def matching(self, rows: Ints, written: Ints, chunks: Ints) -> Bools:
        """Which chunks write what the target of their source has at this point."""
        assert self.targets is not None
        equal = [
            self.targets[row][at : at + len(self.table.targets[chunk])] == self.table.targets[chunk]
            for row, at, chunk in zip(rows.tolist(), written.tolist(), chunks.tolist(), strict=True)
        ]
        return np.array(equal, bool)

    def prune(self, frontier: Frontier) -> Frontier:
        """The best hypotheses of every source; for one output, equal states are kept once."""
        order = np.lexsort((frontier.parents, frontier.chunks, -frontier.scores, frontier.rows))
        if self.n_best == 1:  # equal states have the same futures: the worse one can never win
            state = self.model.state_keys(frontier.contexts, len(order))[order]
            key = np.stack(
                [frontier.rows[order], state, frontier.written[order] if self.targets is not None else 0 * state]
            )
            _, firsts = np.unique(key, axis=1, return_index=True)
            order = order[np.sort(firsts)]
        rows = frontier.rows[order]
        rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
        return take_rows(frontier, order[rank < self.width])

    def outputs(self, ended: list[tuple[float, int]]) -> list[tuple[Tokens, float]]:
        """The best different outputs among finished hypotheses; of several cuts of one output the best."""
        parents, chunks = np.concatenate(self.parents), np.concatenate(self.chunks)
        best: dict[Tokens, float] = {}
        for score, number in sorted(ended, key=lambda hypothesis: (-hypothesis[0], hypothesis[1])):
            parts: list[Tokens] = []
            while chunks[number] >= 0:
                parts.append(self.table.targets[chunks[number]])
                number = int(parents[number])
            best.setdefault(tuple(token for part in reversed(parts) for token in part), score)
            if len(best) == self.n_best:
                break
        return list(best.items())
