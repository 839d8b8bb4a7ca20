"""Word, phoneme and character error rates, and exact match."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from dragoman.scoring.edit import EditAlignment, align_edits, edit_distance
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


@dataclass(frozen=True)
class ErrorRate:
    """The edits of every segment, and the length of its closest reference."""

    edits: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def value(self) -> float:
        """All edits divided by the length of all references; may exceed 1.

        Empty references count as length one in all: 0.0 for an empty output, else the number of edits. jiwer counts the
        same way.
        """
        return sum(self.edits) / max(1, sum(self.lengths))

    def statistics(self, references: References, tokens: str) -> Statistics:
        rows = list(zip(self.edits, self.lengths, strict=True))
        return Statistics(as_rows(rows), signature(references, case="mixed", tok=tokens))


def word_error_rate(hypotheses: Sequence[str], references: References) -> ErrorRate:
    """The edit rate over whitespace-separated tokens, each segment against its closest reference."""
    return _error_rate(hypotheses, references, "words")


def character_error_rate(hypotheses: Sequence[str], references: References) -> ErrorRate:
    """The edit rate over characters, inner spaces included, each segment against its closest reference."""
    return _error_rate(hypotheses, references, "characters")


def exact_matches(hypotheses: Sequence[str], references: References) -> tuple[bool, ...]:
    """Whether each hypothesis equals one of its references, whitespace at the ends aside."""
    check_segments(hypotheses, references)
    return tuple(
        hypothesis.strip() in {text.strip() for text in texts}
        for hypothesis, texts in zip(hypotheses, references, strict=True)
    )


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


def _error_rate(hypotheses: Sequence[str], references: References, units: SymbolUnits) -> ErrorRate:
    closest = list(_closest_references(hypotheses, references, units))
    return ErrorRate(tuple(edits for _, edits, _ in closest), tuple(len(reference) for *_, reference in closest))


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
    """All substitutions, insertions and deletions, and the number of reference symbols."""
    aligned = edit_alignments(hypotheses, references, units=units)
    names = ("substitutions", "insertions", "deletions")
    kinds = {name: sum(getattr(alignment, name) for alignment in aligned) for name in names}
    return kinds | {"reference": sum(len(alignment.left) for alignment in aligned)}


# --- statistics and metrics


def count_word_edits(hypotheses: Sequence[str], references: References) -> Statistics:
    """Edits and reference length in whitespace-separated tokens."""
    return word_error_rate(hypotheses, references).statistics(references, "space")


def count_character_edits(hypotheses: Sequence[str], references: References) -> Statistics:
    """Edits and reference length in characters."""
    return character_error_rate(hypotheses, references).statistics(references, "char")


def count_exact_matches(hypotheses: Sequence[str], references: References) -> Statistics:
    """1 for a segment that matches a reference, and 1 for every segment."""
    rows = [(float(match), 1.0) for match in exact_matches(hypotheses, references)]
    return Statistics(as_rows(rows), signature(references, case="mixed", tok="none"))


def combine_error_rate(sums: FloatArray) -> FloatArray:
    """Edits divided by reference length; an empty reference counts as length one."""
    return np.asarray(sums[..., 0] / np.maximum(1, sums[..., 1]))


def combine_inaccuracy(sums: FloatArray) -> FloatArray:
    return ratio(sums[..., 1] - sums[..., 0], sums[..., 1])


edit_rate = partial(TextMetric, higher_is_better=False, combine=combine_error_rate)
METRICS = (
    edit_rate("wer", "WER", "word edits per reference word", outputs=("words",), count=count_word_edits),
    # The literature on grapheme-to-phoneme conversion calls the share of words that are not exactly right WER.
    TextMetric(
        "wer",
        "WER",
        "share of words whose phonemes are not exactly right",
        outputs=("phonemes",),
        higher_is_better=False,
        count=count_exact_matches,
        combine=combine_inaccuracy,
    ),
    edit_rate("cer", "CER", "character edits per reference character", count=count_character_edits),
    edit_rate("per", "PER", "phoneme edits per reference phoneme", outputs=("phonemes",), count=count_word_edits),
    TextMetric(
        "exact_match",
        "exact match",
        "share of outputs equal to a reference",
        count=count_exact_matches,
        combine=mean_score,
    ),
)
