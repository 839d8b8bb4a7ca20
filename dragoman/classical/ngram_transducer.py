"""The joint-sequence n-gram transducer (Bisani and Ney 2008; Novak et al. 2016): preset `ngram-transducer`.

EM cuts every training pair into chunks of source and target tokens. An n-gram model of chunk sequences gives the
probability of a pair. Decoding searches the chunk sequences whose source side is the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import numpy as np

from dragoman.base import DataError, check_interrupted
from dragoman.base.config import Range, setting
from dragoman.classical.joint_alignment import align_jointly, shapes_of
from dragoman.classical.model import (
    Arrays,
    Note,
    ScoredTokens,
    TensorSpec,
    Tokens,
    Transducer,
    row_arrays,
    row_specs,
    stored_rows,
)
from dragoman.classical.ngram import NGramConfig, NGramModel, ngram_specs
from dragoman.classical.rows import Bools, Floats, Ints, Ragged, join_rows, offsets_of, pair_rows, take_rows
from dragoman.classical.vocabulary import same_spelling
from dragoman.data import SourceReader
from dragoman.data.tokenizers import EOS, UNK, Tokenizer

if TYPE_CHECKING:
    from dragoman.data import Corpus

FIRST = EOS + 1  # the token of the first chunk
REACHED = 0.98  # share of pairs that must be cut


@dataclass(frozen=True)
class NGramTransducerConfig:
    """n-grams of chunks of source and target tokens."""

    kind: ClassVar[str] = "ngram-transducer"
    fitted: ClassVar[bool] = True
    order: Annotated[int, Range(1, 9)] = setting(8, help="chunks in the longest n-gram")
    max_source: Annotated[int, Range(1, 4)] = setting(2, help="source tokens in a chunk")
    max_target: Annotated[int, Range(1, 8)] = setting(
        2, help="target tokens in a chunk; more where too many targets would be too long otherwise"
    )
    iterations: Annotated[int, Range(1)] = setting(10, help="EM iterations of the alignment")
    hypotheses: Annotated[int, Range(1)] = setting(
        24, help="chunk sequences kept at each source token, or --beam if more"
    )


class NGramTransducer(Transducer):
    """p(x, y) ≈ max over cuts of Π p(chunk | chunks before it). Scores are log-probabilities of both sides together."""

    likelihood = "sequence"

    def __init__(self, config: NGramTransducerConfig, source: SourceReader, target: Tokenizer) -> None:
        super().__init__()
        self.config, self.sizes, self.chunks = config, (len(source), len(target)), 0
        # What an unseen source token becomes: the target token of the same spelling, else nothing.
        same = same_spelling(*(side.pieces(range(len(side))) for side in (source, target)))
        self.same = [token if token >= FIRST else -1 for token in same]

    def tensor_specs(self) -> dict[str, TensorSpec]:
        return {
            **row_specs("source_parts", "source_offsets", self.chunks, self.sizes[0]),
            **row_specs("target_parts", "target_offsets", self.chunks, self.sizes[1]),
            **ngram_specs(self.config.order, FIRST + self.chunks),
        }

    def fit(self, corpus: Corpus, note: Note) -> list[float]:
        return self.fit_rows(*pair_rows(corpus.train), note)

    def fit_rows(self, sources: Ragged, targets: Ragged, note: Note = lambda doing, count: None) -> list[float]:
        needed = targets.lengths / np.maximum(sources.lengths, 1)
        longest = next((size for size in range(self.config.max_target, 9) if (needed <= size).mean() >= REACHED), 8)
        shapes = shapes_of(self.config.max_source, longest)
        cut = align_jointly(sources, targets, shapes, self.config.iterations, note)
        paths = [path for path in cut.paths if path is not None]
        if not paths:
            raise DataError(
                f"found no pair whose target is at most {longest} times as long as its source; an n-gram transducer "
                "needs some (swap the columns, or take smaller units for the source)"
            )
        note("counting n-grams", 0)
        used, inverse = np.unique(np.concatenate(paths), return_inverse=True)
        rows = Ragged((inverse + FIRST).astype(np.int32), offsets_of([len(path) for path in paths]))
        parts = [cut.parts(place) for place in used.tolist()]
        left, right = (Ragged.of([part[side] for part in parts]) for side in (0, 1))
        model = NGramModel(NGramConfig(self.config.order), FIRST + len(parts)).fit_rows(rows)
        self.store(
            {
                **row_arrays("source_parts", "source_offsets", left),
                **row_arrays("target_parts", "target_offsets", right),
                **model.tensors,
            }
        )
        return cut.losses

    def load(self, tensors: Arrays) -> None:
        self.chunks = max(0, tensors["source_offsets"].size - 1) if "source_offsets" in tensors else 0
        super().load(tensors)
        model = NGramModel(NGramConfig(self.config.order), FIRST + self.chunks)
        model.load({name: tensor for name, tensor in tensors.items() if name[0].isdigit()})
        left, right = (stored_rows(f"{side}_parts", f"{side}_offsets", tensors) for side in ("source", "target"))
        self.table = ChunkTable(model, left, right, self.same)

    def transduce(self, sources: Sequence[Sequence[int]], beam: int, n_best: int) -> list[list[ScoredTokens]]:
        width = max(beam, self.config.hypotheses, 4 * n_best if n_best > 1 else 0)
        outputs = search_chunks(self.table, [tuple(source) for source in sources], width, n_best)
        return [[ScoredTokens.of(tokens, score) for tokens, score in several] for several in outputs]

    def log_probabilities(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[float]:
        width = 4 * self.config.hypotheses
        outputs = search_chunks(self.table, list(sources), width, 1, list(targets))
        return [several[0][1] if several else -np.inf for several in outputs]


# --- beam search over sequences of chunks: many sources at once, one source token after the other

BATCH = 128  # sources searched together


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
