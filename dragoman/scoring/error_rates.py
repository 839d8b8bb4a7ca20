"""Word, phoneme and character error rates, and exact match."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal

import numpy as np

from dragoman.scoring.edit import EditAlignment, align_edits, edit_distance, edit_distances
from dragoman.scoring.metric import (
    FloatArray,
    References,
    Statistics,
    TextMetric,
    as_rows,
    check_segments,
    mean_score,
    ratio,
    signature,
)

SymbolUnits = Literal["words", "characters"]
SIGNED: dict[SymbolUnits, str] = {"words": "space", "characters": "char"}


def symbols(text: str, units: SymbolUnits) -> Sequence[str]:
    return text.split() if units == "words" else text.strip()


def closest_reference(hypothesis: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[int, Sequence[str]]:
    """The fewest edits, and the reference that needs them, as in NIST scoring.

    Of equally close references the longest counts, so that another equally close reference never raises the rate.
    """
    distances = [(edit_distance(hypothesis, reference), -len(reference)) for reference in references]
    best = min(range(len(references)), key=distances.__getitem__)
    return distances[best][0], references[best]


def _closest_references(
    hypotheses: Sequence[str], references: References, units: SymbolUnits
) -> Iterator[tuple[Sequence[str], int, Sequence[str]]]:
    """Of every segment the symbols of its hypothesis, the fewest edits and the symbols of the closest reference."""
    check_segments(hypotheses, references)
    for text, texts in zip(hypotheses, references, strict=True):
        hypothesis = symbols(text, units)
        yield hypothesis, *closest_reference(hypothesis, [symbols(text, units) for text in texts])


def edit_alignments(
    hypotheses: Sequence[str], references: References, *, units: SymbolUnits = "words", substitution: int = 1
) -> list[EditAlignment]:
    """The edit alignment from each closest reference to its hypothesis.

    An insertion is a symbol that only the hypothesis has. With every cost 1 the number of edits is that of the error
    rate; how they divide into kinds may depend on the choice among equally cheap alignments.
    """
    return [
        align_edits(reference, hypothesis, substitution=substitution)
        for hypothesis, _, reference in _closest_references(hypotheses, references, units)
    ]


def count_edit_kinds(hypotheses: Sequence[str], references: References, units: SymbolUnits) -> dict[str, int]:
    aligned = edit_alignments(hypotheses, references, units=units)
    names = ("substitutions", "insertions", "deletions")
    kinds = {name: sum(getattr(alignment, name) for alignment in aligned) for name in names}
    return kinds | {"reference": sum(len(alignment.left) for alignment in aligned)}


def count_edits(hypotheses: Sequence[str], references: References, units: SymbolUnits = "words") -> Statistics:
    """Edits, and the length of the closest reference, in whitespace-separated tokens or characters."""
    closest = _closest_references(hypotheses, references, units)
    rows = [(edits, len(reference)) for _, edits, reference in closest]
    return Statistics(as_rows(rows), signature(references, case="mixed", tok=SIGNED[units]))


def count_exact_matches(hypotheses: Sequence[str], references: References) -> Statistics:
    """1 for a segment that equals a reference, whitespace at the ends aside, and 1 for every segment."""
    rows = [
        (float(hypothesis.strip() in {text.strip() for text in texts}), 1.0)
        for hypothesis, texts in zip(hypotheses, references, strict=True)
    ]
    return Statistics(as_rows(rows), signature(references, case="mixed", tok="none"))


def combine_error_rate(sums: FloatArray) -> FloatArray:
    """Edits divided by reference length; may exceed 1. Empty references count as length one in all, as in jiwer."""
    return np.asarray(sums[..., 0] / np.maximum(1, sums[..., 1]))


def combine_inaccuracy(sums: FloatArray) -> FloatArray:
    return ratio(sums[..., 1] - sums[..., 0], sums[..., 1])


def pairwise_rates(hypotheses: Sequence[str], references: Sequence[str], units: SymbolUnits = "words") -> FloatArray:
    """The error rate of each hypothesis against each reference: (H, R)."""
    lefts, rights = ([symbols(text, units) for text in texts] for texts in (hypotheses, references))
    lengths = np.array([max(1, len(reference)) for reference in rights])
    return np.asarray(edit_distances(lefts, rights) / lengths)


edit_rate = partial(TextMetric, higher_is_better=False, combine=combine_error_rate, pairwise=pairwise_rates)
match_rate = partial(TextMetric, count=count_exact_matches)
count_characters = partial(count_edits, units="characters")
METRICS = (
    edit_rate("wer", "WER", "word edits per reference word", outputs=("words",), count=count_edits),
    # The literature on grapheme-to-phoneme conversion calls the share of words that are not exactly right WER.
    match_rate(
        "wer",
        "WER",
        "share of words whose phonemes are not exactly right",
        outputs=("phonemes",),
        higher_is_better=False,
        combine=combine_inaccuracy,
    ),
    edit_rate(
        "cer",
        "CER",
        "character edits per reference character",
        count=count_characters,
        pairwise=partial(pairwise_rates, units="characters"),
    ),
    edit_rate("per", "PER", "phoneme edits per reference phoneme", outputs=("phonemes",), count=count_edits),
    match_rate("exact_match", "exact match", "share of outputs equal to a reference", combine=mean_score),
)
