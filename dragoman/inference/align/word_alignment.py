"""Word alignments by EM and terms: from raw sentence pairs, or by a run that is a word aligner."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dragoman.base import DataError
from dragoman.classical import PRIOR, BothDirections, Floats, Note, Ragged, Vocabulary, WordAlignerModel, phrase_spans
from dragoman.data import SourceReader
from dragoman.data.tokenizers import UNK
from dragoman.inference.align.alignment import NO_ALIGNMENT, Pair, token_word_shares, word_spans, words_of_pair
from dragoman.inference.align.alignments import WordAlignment
from dragoman.inference.inputs import Warn
from dragoman.inference.pipeline import Done, Row
from dragoman.inference.predictor import Predictor
from dragoman.inference.target_scores import PairWork
from dragoman.scoring import Links

MAX_WORDS = 500  # of a sentence; longer ones need too much memory for too little
WINDOW = 32_768  # pairs aligned at a time; fewer cost time for each of many small arrays
CELLS = 8_000_000  # links of these pairs, or more memory would be needed; they are estimated
LETTERS = 6  # of a word, with the space behind it
NOTED = 20_000  # pairs between two reports of progress
FUNCTION_WORDS = 0.005  # words that make up this share of a text neither begin nor end a term,
ENOUGH = 20_000  # if it has so many words

NO_WEIGHTS = torch.empty(0, 0)
LinksWeights = tuple[Links, Tensor]  # the weights are (T, S)


def aligned_ahead(
    pairs: Iterable[Pair], align: Callable[[Sequence[Pair]], Iterable[LinksWeights]]
) -> Iterator[tuple[Pair, LinksWeights]]:
    """Every pair with its links; a thread computes those of the next pairs while the caller uses these."""
    with ThreadPoolExecutor(1) as worker:
        last: tuple[list[Pair], Future[Iterable[LinksWeights]]] | None = None
        for window in windows(pairs):
            before, last = last, (window, worker.submit(align, window))
            if before is not None:
                yield from zip(before[0], before[1].result(), strict=True)
        if last is not None:
            yield from zip(last[0], last[1].result(), strict=True)


def windows(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Pairs that are aligned together: as many as memory allows."""
    window, cells = list[Pair](), 0
    for pair in pairs:
        window.append(pair)
        cells += (len(pair[0]) // LETTERS + 1) * (len(pair[1]) // LETTERS + 1)
        if len(window) >= WINDOW or cells >= CELLS:
            yield window
            window, cells = [], 0
    if window:
        yield window


def align_rows(
    both: BothDirections, left: Ragged, right: Ragged, combine: str, threshold: float | None, weights: bool
) -> Iterator[LinksWeights]:
    """The links of every pair, and with `weights` the geometric means of both directions' probabilities."""
    links, forward, backward = both.align_rows(left, right, combine, threshold=threshold, keep=weights)
    means: Iterable[Tensor] = repeat(NO_WEIGHTS, len(left))
    if weights:
        means = map(mean_weights, forward.posteriors, backward.posteriors)
    return zip(links.rows(len(left)), means, strict=True)


class RawAligner:
    """Learns both directions of a word alignment from sentence pairs."""

    def __init__(self, kind: str, iterations: int, pairs: Iterable[Pair], note: Note, prior: float = PRIOR) -> None:
        self.vocabularies = Vocabulary(), Vocabulary()
        numbers, lengths = (array("i"), array("i")), (array("q", [0]), array("q", [0]))
        self.count = 0
        for pair in pairs:
            if self.count % NOTED == 0:
                note("reading pairs", self.count)
            self.count += 1
            for words, vocabulary, flat, sizes in zip(
                usable_words(pair), self.vocabularies, numbers, lengths, strict=True
            ):
                flat.extend(vocabulary.learn(words))
                sizes.append(len(words))
        if not numbers[0]:
            raise DataError(f"found no pair of sentences with 1 to {MAX_WORDS} words, expected some to align")
        left, right = (
            Ragged(np.frombuffer(flat, np.int32), np.cumsum(np.frombuffer(sizes, np.int64)))
            for flat, sizes in zip(numbers, lengths, strict=True)
        )
        self.both = BothDirections(kind, iterations, prior)
        self.losses = self.both.fit_rows(left, right, (self.vocabularies[0].size, self.vocabularies[1].size), note)

    def __call__(
        self,
        pairs: Iterable[Pair],
        combine: str = "grow-diag-final-and",
        threshold: float | None = None,
        weights: bool = True,
    ) -> Iterator[WordAlignment]:
        """The links of every pair; `weights` are the geometric means of both directions' probabilities."""

        def align(pairs: Sequence[Pair]) -> list[LinksWeights]:
            words = list(map(usable_words, pairs))
            left, right = (
                vocabulary.rows([pair[side] for pair in words]) for side, vocabulary in enumerate(self.vocabularies)
            )
            return list(align_rows(self.both, left, right, combine, threshold, weights))

        for (source, target), (links, means) in aligned_ahead(pairs, align):
            left, right = tuple(source.split()), tuple(target.split())
            if weights and means.shape != (len(right), len(left)):  # too long
                means = torch.zeros(len(right), len(left))
            yield WordAlignment(left, right, links, means)


def usable_words(pair: Pair) -> tuple[list[str], list[str]]:
    """The words of both sides; none where one side has none or too many."""
    left, right = pair[0].split(), pair[1].split()
    if not left or not right or max(len(left), len(right)) > MAX_WORDS:
        return [], []
    return left, right


def mean_weights(forward: Floats, backward: Floats) -> Tensor:
    """The geometric means (T, S) of both directions' probabilities."""
    return torch.from_numpy((forward[:, 1:] * backward[:, 1:].T) ** 0.5)


@dataclass(frozen=True)
class TokenAlignWork(PairWork[WordAlignment]):
    """Aligns words by a run that aligns tokens: two words are linked where any of their tokens are."""

    run: Predictor
    combine: str = "grow-diag-final-and"
    threshold: float | None = None
    tag: str | None = None

    empty = NO_ALIGNMENT

    @property
    def tokenizers(self) -> tuple[SourceReader, SourceReader]:
        return self.run.source_tokenizer, self.run.target_tokenizer

    def encode(self, rows: Sequence[Row]) -> None:
        """`outputs` encodes rows together with their alignment, in a thread."""

    def check_source(self, row: Row, warn: Warn) -> None:
        """Of any length: pairs of more than MAX_WORDS tokens have no links."""

    def outputs(self, rows: Sequence[Row], done: Done) -> list[WordAlignment]:
        pairs = [(row.text, row.item.target or "") for row in rows]
        out = []
        for row, ((source, target), (links, weights)) in zip(
            rows, aligned_ahead(pairs, self.align_tokens), strict=True
        ):
            left, right = word_spans(source, self.run.tags), word_spans(target)
            if weights.numel():
                columns = shares(self.tokenizers[0], source, left, weights.shape[1])
                own = shares(self.tokenizers[1], target, right, weights.shape[0])
                links = links_of_words(links, columns, own)
                weights = (own / own.sum(0).clamp(min=1e-9)).T @ weights @ columns
            else:
                weights = torch.zeros(len(right), len(left))
            out.append(WordAlignment(*words_of_pair(row, (left, right)), links, weights))
            done(row)
        return out

    def align_tokens(self, pairs: Sequence[Pair]) -> list[LinksWeights]:
        """The links of the tokens of every pair; none for those that are too long."""
        model: WordAlignerModel = self.run.model
        sources, targets = (
            encode_without_case(tokenizer, known, [pair[side] for pair in pairs])
            for side, (tokenizer, known) in enumerate(zip(self.tokenizers, model.known, strict=True))
        )
        usable = [max(map(len, pair)) <= MAX_WORDS for pair in zip(sources, targets, strict=True)]
        left, right = (
            Ragged.of([row if fits else [] for row, fits in zip(side, usable, strict=True)])
            for side in (sources, targets)
        )
        numbered = model.numbered(left, right)
        return list(align_rows(model.both, *numbered, self.combine, self.threshold, True))


def encode_without_case(tokenizer: SourceReader, known: Mapping[str, int], texts: Sequence[str]) -> list[list[int]]:
    """Token ids; a token that the vocabulary has in another case alone is that one."""
    rows = [list(row) for row in tokenizer.encode_batch(texts)]
    for row, text in zip(rows, texts, strict=True):
        if UNK in row:
            spans = tokenizer.spans(text)
            row[:] = [
                known.get(text[slice(*span)].casefold(), UNK) if token == UNK else token
                for token, span in zip(row, spans, strict=True)
            ]
    return rows


def shares(tokenizer: SourceReader, text: str, words: Sequence[tuple[int, int]], tokens: int) -> Tensor:
    return token_word_shares(tokenizer.spans(text), words, tokens).double()


def links_of_words(links: Links, columns: Tensor, rows: Tensor) -> Links:
    left, right = ([row.nonzero().flatten().tolist() for row in side] for side in (columns, rows))
    return frozenset((word, other) for source, target in links for word in left[source] for other in right[target])


class Term(NamedTuple):
    """A source phrase with its most frequent translation."""

    source: str
    target: str
    times: int  # occurrences of the pair
    share: float  # of the source phrase's occurrences


def extract_terms(
    alignments: Iterator[WordAlignment],
    *,
    max_words: int = 3,
    min_count: int = 3,
    min_share: float = 0.5,
    done: Callable[[int], None] = lambda count: None,
) -> list[Term]:
    """Phrases that are mostly translated in one way, most frequent first.

    A phrase neither begins nor ends with a word that makes up 0.5 % of a long text, or that has no letter.
    """
    pairs: Counter[tuple[str, str]] = Counter()
    totals: Counter[str] = Counter()
    words: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for alignment in alignments:
        for side, text in enumerate((alignment.source, alignment.target)):
            words[side].update(word.casefold() for word in text)
        spans = phrase_spans(len(alignment.source), len(alignment.target), alignment.links, max_words)
        seen = set()
        for left, right in spans:
            source, target = " ".join(alignment.source[slice(*left)]), " ".join(alignment.target[slice(*right)])
            pairs[source, target] += 1
            if left not in seen:
                totals[source] += 1
                seen.add(left)
        done(1)
    common = [
        {word for word, count in side.items() if count >= FUNCTION_WORDS * max(side.total(), ENOUGH)} for side in words
    ]

    def usable(text: str, side: int) -> bool:
        parts = text.casefold().split()
        ends = (parts[0], parts[-1])
        return not any(word in common[side] or not any(map(str.isalpha, word)) for word in ends)

    best: dict[str, Term] = {}
    for (source, target), count in sorted(pairs.items(), key=lambda item: (-item[1], len(item[0][1]), item[0])):
        share = min(1.0, count / totals[source])
        if count >= min_count and share >= min_share and usable(source, 0) and usable(target, 1):
            best.setdefault(source, Term(source, target, count, share))
    return sorted(best.values(), key=lambda term: (-term.times, term.source))
