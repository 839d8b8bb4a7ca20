"""Whether an output begins with the right word."""

from __future__ import annotations

from collections.abc import Sequence

import dragoman
from dragoman.extend import (
    FloatArray,
    References,
    Statistics,
    TextMetric,
    as_rows,
    ratio,
    signature,
)


def count(hypotheses: Sequence[str], references: References) -> Statistics:
    """Per segment: 1 if the first word is that of a reference, and 1."""
    rows = []
    for hypothesis, texts in zip(hypotheses, references, strict=True):
        first = hypothesis.split()[:1]
        rows.append([any(text.split()[:1] == first for text in texts), 1])
    return Statistics(as_rows(rows), signature(references, tok="space"))


def combine(sums: FloatArray) -> FloatArray:
    return ratio(sums[..., 0], sums[..., 1])


dragoman.register(
    TextMetric(
        name="first_word", label="first word", about="outputs whose first word is right", count=count, combine=combine
    )
)
