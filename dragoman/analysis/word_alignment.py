"""Word alignments and terms from raw sentence pairs, without a neural run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from dragoman.analysis.alignment import Pair, WordAlignment
from dragoman.classical.model import Note
from dragoman.classical.phrases import phrase_spans
from dragoman.classical.word_alignment import WordAligner, links_of
from dragoman.errors import DataError
from dragoman.scoring.alignment import SYMMETRIZATIONS, swap_direction

PRIOR = 0.01  # of a word's translations: few words have many
MAX_WORDS = 500  # of a sentence; longer ones need too much memory for too little
FUNCTION_WORDS = 0.005  # words that make up this share of a text neither begin nor end a term,
ENOUGH = 20_000  # if it has so many words


class RawAligner:
    """Learns both directions of a word alignment from sentence pairs."""

    def __init__(self, kind: str, iterations: int, pairs: Sequence[Pair], note: Note) -> None:
        one = dict[str, str]().setdefault  # one copy of every word in memory
        sources, targets = list[list[str]](), list[list[str]]()
        for source, target in pairs:
            left, right = source.split(), target.split()
            if 0 < len(left) <= MAX_WORDS and 0 < len(right) <= MAX_WORDS:
                sources.append([one(word, word) for word in left])
                targets.append([one(word, word) for word in right])
        if not sources:
            raise DataError(f"found no pair of sentences with 1 to {MAX_WORDS} words, expected some to align")
        self.forward, self.backward = WordAligner(kind, iterations, PRIOR), WordAligner(kind, iterations, PRIOR)
        rows = [aligner.read(*sides) for aligner, sides in (
            (self.forward, (sources, targets)), (self.backward, (targets, sources)),
        )]  # fmt: skip
        del sources, targets
        with ThreadPoolExecutor(2) as directions:  # numpy computes both at once where there are two cores
            losses = [
                directions.submit(self.forward.fit_rows, *rows[0], note),
                directions.submit(self.backward.fit_rows, *rows[1]),
            ]
            self.losses = [loss.result() for loss in losses]

    def __call__(
        self, pairs: Sequence[Pair], combine: str = "grow-diag-final-and", threshold: float | None = None
    ) -> Iterator[WordAlignment]:
        """The links of every pair; `weights` are the geometric means of both directions' probabilities."""
        for first in range(0, len(pairs), 2048):
            some = [(source.split(), target.split()) for source, target in pairs[first : first + 2048]]
            short = [pair if max(map(len, pair)) <= MAX_WORDS else ([], []) for pair in some]
            sources, targets = [pair[0] for pair in short], [pair[1] for pair in short]
            ahead, back = self.forward.posteriors(sources, targets), self.backward.posteriors(targets, sources)
            for (source, target), one, other in zip(some, ahead, back, strict=True):
                if max(len(source), len(target)) > MAX_WORDS:
                    yield WordAlignment(
                        tuple(source), tuple(target), frozenset(), torch.zeros(len(target), len(source))
                    )
                    continue
                links = SYMMETRIZATIONS[combine](links_of(one, threshold), swap_direction(links_of(other, threshold)))
                weights = torch.from_numpy((one[:, 1:] * other[:, 1:].T) ** 0.5)
                yield WordAlignment(tuple(source), tuple(target), links, weights)


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
