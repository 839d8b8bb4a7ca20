"""Word, phoneme and character error rates, and exact match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    ratio,
    signature,
)


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


def closest_reference(hypothesis: Sequence[str], choices: Sequence[Sequence[str]]) -> tuple[int, Sequence[str]]:
    """The fewest edits, and the reference they lead to.

    The closest reference counts, much as in NIST scoring; of equally close ones the longest, so that one more equally
    close reference never raises the rate.
    """
    measured = [(edit_distance(hypothesis, reference), -len(reference)) for reference in choices]
    best = min(range(len(choices)), key=measured.__getitem__)
    return measured[best][0], choices[best]


def _error_rate(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> ErrorRate:
    found = [closest_reference(hypothesis, choices) for hypothesis, choices in zip(hypotheses, references, strict=True)]
    return ErrorRate(tuple(edits for edits, _ in found), tuple(len(reference) for _, reference in found))


def edit_alignments(
    hypotheses: Sequence[str],
    references: References,
    *,
    units: Literal["words", "characters"] = "words",
    substitution: int = 1,
) -> list[EditAlignment]:
    """How each closest reference was changed into its hypothesis: what was replaced, inserted and left out.

    An insertion is what the hypothesis has too much. With every cost 1 the edits are those of the error rate; how they
    divide into kinds may depend on the choice among equally cheap alignments.
    """
    check_segments(hypotheses, references)
    found = []
    for hypothesis, texts in zip(hypotheses, references, strict=True):
        if units == "words":
            _, reference = closest_reference(hypothesis.split(), [text.split() for text in texts])
            found.append(align_edits(reference, hypothesis.split(), substitution=substitution))
        else:
            _, reference = closest_reference(hypothesis.strip(), [text.strip() for text in texts])
            found.append(align_edits(reference, hypothesis.strip(), substitution=substitution))
    return found


def count_edit_kinds(
    hypotheses: Sequence[str], references: References, units: Literal["words", "characters"]
) -> dict[str, int]:
    """How many symbols were replaced, inserted and left out in all, and how many the references have."""
    found = edit_alignments(hypotheses, references, units=units)
    kinds = {kind: sum(getattr(one, kind) for one in found) for kind in ("substitutions", "insertions", "deletions")}
    return kinds | {"reference": sum(len(one.left) for one in found)}


# --- statistics and metrics


def _rate_statistics(rate: ErrorRate, references: References, tokens: str) -> Statistics:
    rows = list(zip(rate.edits, rate.lengths, strict=True))
    return Statistics(as_rows(rows), signature(references, case="mixed", tok=tokens))


def count_word_edits(hypotheses: Sequence[str], references: References) -> Statistics:
    """Edits and reference length in whitespace-separated tokens."""
    return _rate_statistics(word_error_rate(hypotheses, references), references, "space")


def count_character_edits(hypotheses: Sequence[str], references: References) -> Statistics:
    """Edits and reference length in characters."""
    return _rate_statistics(character_error_rate(hypotheses, references), references, "char")


def count_exact_matches(hypotheses: Sequence[str], references: References) -> Statistics:
    """1 for a segment that matches a reference, and 1 for every segment."""
    rows = [(float(match), 1.0) for match in exact_matches(hypotheses, references)]
    return Statistics(as_rows(rows), signature(references, case="mixed", tok="none"))


def combine_error_rate(sums: FloatArray) -> FloatArray:
    """Edits divided by reference length; an empty reference counts as length one."""
    return np.asarray(sums[..., 0] / np.maximum(1, sums[..., 1]))


def combine_accuracy(sums: FloatArray) -> FloatArray:
    """The share of segments that match."""
    return ratio(sums[..., 0], sums[..., 1])


def combine_inaccuracy(sums: FloatArray) -> FloatArray:
    """The share of segments that do not match."""
    return ratio(sums[..., 1] - sums[..., 0], sums[..., 1])


METRICS = (
    TextMetric(
        name="wer",
        label="WER",
        about="word edits per reference word",
        outputs=("words",),
        higher_is_better=False,
        count=count_word_edits,
        combine=combine_error_rate,
    ),
    # The literature on grapheme-to-phoneme conversion calls the share of words that are not exactly right WER.
    TextMetric(
        name="wer",
        label="WER",
        about="share of words whose phonemes are not exactly right",
        outputs=("phonemes",),
        higher_is_better=False,
        count=count_exact_matches,
        combine=combine_inaccuracy,
    ),
    TextMetric(
        name="cer",
        label="CER",
        about="character edits per reference character",
        higher_is_better=False,
        count=count_character_edits,
        combine=combine_error_rate,
    ),
    TextMetric(
        name="per",
        label="PER",
        about="phoneme edits per reference phoneme",
        outputs=("phonemes",),
        higher_is_better=False,
        count=count_word_edits,
        combine=combine_error_rate,
    ),
    TextMetric(
        name="exact_match",
        label="exact match",
        about="share of outputs equal to a reference",
        count=count_exact_matches,
        combine=combine_accuracy,
    ),
)
