"""The joint-sequence n-gram transducer (Bisani and Ney 2008; Novak et al. 2016): preset `ngram-transducer`.

EM cuts every training pair into chunks of source and target tokens. An n-gram model of chunk sequences gives the
probability of a pair. Decoding searches the chunk sequences whose source side is the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from dragoman.classical.chunk_search import ChunkTable, search_chunks
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
from dragoman.classical.rows import Ragged, offsets_of, pair_rows
from dragoman.classical.vocabulary import same_spelling
from dragoman.config.settings import Range, setting
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import EOS, Tokenizer
from dragoman.errors import DataError

if TYPE_CHECKING:
    from dragoman.data.corpus import Corpus

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
