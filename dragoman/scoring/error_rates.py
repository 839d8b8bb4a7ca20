"""Error rates over words, phonemes and characters, and exact matches (FIELD I2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dragoman.scoring.edit import Alignment, align, edit_distance
from dragoman.scoring.metric import Numbers, References, Statistics, as_rows, check_segments, ratio, signature


@dataclass(frozen=True)
class ErrorRate:
    """Edits and chosen reference length of every segment, enough for any cut or resampling of the rate."""

    edits: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def value(self) -> float:
        """All edits over all reference symbols; may exceed one.

        Where the references hold nothing at all, the edits are taken over a length of one: 0.0 for silence
        answered by silence, the bare count of edits otherwise. jiwer counts the same way.
        """
        return sum(self.edits) / max(1, sum(self.lengths))


def word_error_rate(hypotheses: Sequence[str], references: References) -> ErrorRate:
    """The edit rate over tokens between whitespace, each segment against its closest reference."""
    check_segments(hypotheses, references)
    return _error_rate(
        [text.split() for text in hypotheses], [[text.split() for text in texts] for texts in references]
    )


def character_error_rate(hypotheses: Sequence[str], references: References) -> ErrorRate:
    """The edit rate over characters, inner spaces included, each segment against its closest reference."""
    check_segments(hypotheses, references)
    return _error_rate(
        [text.strip() for text in hypotheses], [[text.strip() for text in texts] for texts in references]
    )


def exact_matches(hypotheses: Sequence[str], references: References) -> tuple[bool, ...]:
    """Whether each hypothesis is, but for whitespace at its ends, one of its references."""
    check_segments(hypotheses, references)
    return tuple(
        hypothesis.strip() in {text.strip() for text in texts}
        for hypothesis, texts in zip(hypotheses, references, strict=True)
    )


def closest(hypothesis: Sequence[str], choices: Sequence[Sequence[str]]) -> tuple[int, Sequence[str]]:
    """The fewest edits, and the reference they lead to.

    The closest reference counts, much as in NIST scoring; of equally close ones the longest, so that one more equally
    close reference never raises the rate.
    """
    measured = [(edit_distance(hypothesis, reference), -len(reference)) for reference in choices]
    best = min(range(len(choices)), key=measured.__getitem__)
    return measured[best][0], choices[best]


def _error_rate(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> ErrorRate:
    found = [closest(hypothesis, choices) for hypothesis, choices in zip(hypotheses, references, strict=True)]
    return ErrorRate(tuple(edits for edits, _ in found), tuple(len(reference) for _, reference in found))


def alignments(
    hypotheses: Sequence[str],
    references: References,
    *,
    units: Literal["words", "characters"] = "words",
    substitution: int = 1,
) -> list[Alignment]:
    """How each closest reference was changed into its hypothesis: what was replaced, inserted and left out.

    An insertion is what the hypothesis has too much. With every cost 1 the edits are those of the error rate; how they
    divide into kinds may depend on the choice among equally cheap alignments.
    """
    check_segments(hypotheses, references)
    found = []
    for hypothesis, texts in zip(hypotheses, references, strict=True):
        if units == "words":
            _, reference = closest(hypothesis.split(), [text.split() for text in texts])
            found.append(align(reference, hypothesis.split(), substitution=substitution))
        else:
            _, reference = closest(hypothesis.strip(), [text.strip() for text in texts])
            found.append(align(reference, hypothesis.strip(), substitution=substitution))
    return found


def error_kinds(
    hypotheses: Sequence[str], references: References, units: Literal["words", "characters"]
) -> dict[str, int]:
    """How many symbols were replaced, inserted and left out in all, and how many the references have."""
    found = alignments(hypotheses, references, units=units)
    kinds = {kind: sum(getattr(one, kind) for one in found) for kind in ("substitutions", "insertions", "deletions")}
    return kinds | {"reference": sum(len(one.left) for one in found)}


# --- as rows of the table of metrics


def _counted(rate: ErrorRate, references: References, tokens: str) -> Statistics:
    rows = list(zip(rate.edits, rate.lengths, strict=True))
    return Statistics(as_rows(rows), signature(references, case="mixed", tok=tokens))


def count_tokens(hypotheses: Sequence[str], references: References) -> Statistics:
    """Edits and reference length in tokens between whitespace."""
    return _counted(word_error_rate(hypotheses, references), references, "space")


def count_characters(hypotheses: Sequence[str], references: References) -> Statistics:
    """Edits and reference length in characters."""
    return _counted(character_error_rate(hypotheses, references), references, "char")


def count_exact(hypotheses: Sequence[str], references: References) -> Statistics:
    """1 for what is right, and 1 for every segment."""
    rows = [(float(right), 1.0) for right in exact_matches(hypotheses, references)]
    return Statistics(as_rows(rows), signature(references, case="mixed", tok="none"))


def combine_errors(sums: Numbers) -> Numbers:
    """Edits over reference symbols, over one where there are none."""
    return np.asarray(sums[..., 0] / np.maximum(1, sums[..., 1]))


def combine_matches(sums: Numbers) -> Numbers:
    """The share of segments that are right."""
    return ratio(sums[..., 0], sums[..., 1])


def combine_misses(sums: Numbers) -> Numbers:
    """The share of segments that are not right."""
    return ratio(sums[..., 1] - sums[..., 0], sums[..., 1])
