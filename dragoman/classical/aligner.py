"""Word aligners as runs: preset `word-aligner`. `dragoman align RUN` is what they are for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.base.config import Range, setting
from dragoman.classical.model import Arrays, Note, ScoredTokens, TensorSpec, Tokens, Transducer, rows_of
from dragoman.classical.rows import Ragged, pair_rows
from dragoman.classical.vocabulary import fold_case, same_spelling, without_case
from dragoman.classical.word_alignment import PRIOR, BothDirections, WordAligner
from dragoman.data import SourceReader
from dragoman.data.tokenizers import EOS, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.data import Batch, Corpus


@dataclass(frozen=True)
class WordAlignerConfig:
    """Word alignment by EM in both directions: IBM models 1, 2, 3 or an HMM."""

    kind: ClassVar[str] = "word-aligner"
    fitted: ClassVar[bool] = True
    method: Literal["ibm1", "ibm2", "ibm3", "hmm"] = setting(
        "hmm", help="IBM model 1, 2 or 3 (Brown et al. 1993), or a hidden Markov model (Vogel et al. 1996)"
    )
    iterations: Annotated[int, Range(1)] = setting(5, help="EM iterations of each model")
    prior: Annotated[float, Range(0.0)] = setting(
        PRIOR, help="Dirichlet prior that makes translations of a word few; 0: EM, whose loss never rises"
    )


class WordAlignerModel(Transducer):
    """p(target | source), a sum over alignments (of model 3 the best alignment), and the same backwards.

    Its output for a source is word for word: of every token the most probable translation, in the order of the source.
    A token that training did not have is copied, or left out where the target has no such token, as <unk> is.
    """

    likelihood = "sequence"
    shows_alignment = True

    def __init__(self, config: WordAlignerConfig, source: SourceReader, target: Tokenizer) -> None:
        super().__init__()
        self.config = config
        self.sizes = len(source), len(target)
        self.both = BothDirections(config.method, config.iterations, config.prior)
        pieces = source.pieces(range(len(source))), target.pieces(range(len(target)))
        self.folded = fold_case(pieces[0]), fold_case(pieces[1])
        self.known = without_case(pieces[0]), without_case(pieces[1])
        self.same = same_spelling(*pieces)

    def tensor_specs(self) -> dict[str, TensorSpec]:
        sides = [aligner.tensor_specs(prefix, sizes) for prefix, aligner, sizes in self.sides()]
        return sides[0] | sides[1]

    def sides(self) -> Iterator[tuple[str, WordAligner, tuple[int, int]]]:
        """Of both directions the prefix of its tensors, its aligner, and the sizes of what it reads and aligns."""
        yield "forward_", self.both.forward, self.sizes
        yield "backward_", self.both.backward, (self.sizes[1], self.sizes[0])

    def fit(self, corpus: Corpus, note: Note) -> list[float]:
        return self.fit_rows(*pair_rows(corpus.train), note)

    def fit_rows(self, sources: Ragged, targets: Ragged, note: Note = lambda doing, count: None) -> list[float]:
        losses = self.both.fit_rows(*self.numbered(sources, targets), self.sizes, note)
        arrays: dict[str, NDArray[Any]] = {}
        for prefix, aligner, _ in self.sides():
            arrays |= {f"{prefix}{name}": array for name, array in aligner.arrays().items()}
        self.store(arrays)
        return losses

    def load(self, tensors: Arrays) -> None:
        super().load(tensors)
        self.__dict__.pop("translations", None)
        for prefix, aligner, sizes in self.sides():
            arrays = {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}
            aligner.restore(arrays, sizes)

    def numbered(self, sources: Ragged, targets: Ragged) -> tuple[Ragged, Ragged]:
        """Tokens as the aligners count them: without case. Nothing has the number 0, that of <pad>."""
        return sources.mapped(self.folded[0]), targets.mapped(self.folded[1])

    def attention(self, batch: Batch) -> Tensor:
        """p(source token | target token) as attention (B, 1, T, S); <eos> has the share of the empty word."""
        import torch

        sources, targets = rows_of(batch.source.data), rows_of(batch.target)
        out = torch.zeros(len(sources), 1, batch.target.shape[1], batch.source.data.shape[1])
        posteriors = self.both.forward.align_rows(*self.numbered(Ragged.of(sources), Ragged.of(targets))).posteriors
        for row, (posterior, source, target) in enumerate(zip(posteriors, sources, targets, strict=True)):
            shares = torch.from_numpy(posterior)
            out[row, 0, : len(target), : len(source)] = shares[:, 1:]
            out[row, 0, : len(target), len(source)] = shares[:, 0]
            out[row, 0, len(target), len(source)] = 1.0
        return out

    @cached_property
    def translations(self) -> NDArray[np.int64]:
        """For every source token the target token with the highest p(target | source), or its copy; −1: it has none."""
        aligner = self.both.forward
        best = np.full(self.sizes[0], -1, np.int64)
        targets = aligner.keys % (aligner.sizes[1] + 1)
        usable = np.flatnonzero((targets > EOS) & (targets < aligner.sizes[1]))
        order = usable[np.lexsort((-usable, aligner.table[usable], aligner.owners[usable]))]  # the best come last
        best[aligner.owners[order]] = targets[order]
        best = best[self.folded[0]]
        best = np.where(best >= 0, best, self.same)
        best[: EOS + 1] = -1
        return best

    def transduce(self, sources: Sequence[Sequence[int]], beam: int, n_best: int) -> list[list[ScoredTokens]]:
        rows = [tuple(source) for source in sources]
        outputs = [tuple(token for token in self.translations[list(row)].tolist() if token >= 0) for row in rows]
        logs = self.log_probabilities(rows, outputs)
        return [[ScoredTokens.of(tokens, log)] for tokens, log in zip(outputs, logs, strict=True)]

    def log_probabilities(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[float]:
        rows = self.numbered(Ragged.of(sources), Ragged.of(targets))
        return [float(log) for log in self.both.forward.align_rows(*rows, keep=False).logs]
