"""What every metric is: a way to count each segment, and a way to turn summed counts into a score.

Because counts add up, corpus scores, cuts, confidence intervals and significance tests all come from one counting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DataError
from dragoman.version import __version__

Numbers = NDArray[np.float64]
References = Sequence[Sequence[str]]  # one or more texts a segment; their number may differ between segments


class Statistics(NamedTuple):
    """The counts of every segment, and the signature that says how they were counted."""

    rows: Numbers  # (S, K), one row a segment; a part of the corpus is a sum of rows
    signature: str


@dataclass(frozen=True)
class Metric:
    """One row of the table of metrics."""

    title: str
    about: str
    count: Callable[[Sequence[str], References], Statistics]
    combine: Callable[[Numbers], Numbers]  # summed counts (..., K) → scores (...)
    higher: bool = True  # whether a higher score is the better one
    fraction: bool = True  # of one, and shown as a percentage; otherwise already from 0 to 100

    def statistics(self, hypotheses: Sequence[str], references: References) -> Statistics:
        """The counts of every segment, after a look at what was given."""
        check_segments(hypotheses, references)
        return self.count(hypotheses, references)

    def score(self, statistics: Statistics) -> float:
        """The corpus score: of all segments together, not the mean of their scores."""
        return float(self.combine(statistics.rows.sum(axis=0)))

    def show(self, value: float) -> str:
        """A score as people read it."""
        return f"{100 * value:.2f} %" if self.fraction else f"{value:.2f}"


def check_segments(hypotheses: Sequence[str], references: References) -> None:
    """Refuse what cannot be scored: nothing at all, unequal counts, a segment without a reference."""
    if len(hypotheses) != len(references):
        raise DataError(
            f"cannot score {len(hypotheses)} hypotheses against references for {len(references)} segments: "
            "expected as many of one as of the other"
        )
    if not hypotheses:
        raise DataError("nothing to score: found 0 hypotheses, expected at least one")
    for number, texts in enumerate(references, start=1):
        # A bare string is a sequence of strings too, and would be read as one reference per character.
        if isinstance(texts, str):
            raise DataError(f"segment {number}: found a string as references, expected a list of strings")
        if not texts:
            raise DataError(f"segment {number}: found no reference, expected at least one")


def signature(references: References, **facts: str) -> str:
    """A signature in sacreBLEU's form, for what is counted here."""
    counts = {len(texts) for texts in references}
    count = str(counts.pop()) if len(counts) == 1 else "var"
    parts = {"nrefs": count, **facts, "version": f"dragoman-{__version__}"}
    return "|".join(f"{name}:{value}" for name, value in parts.items())


def as_rows(rows: Sequence[Sequence[float]]) -> Numbers:
    """Counts as a matrix with one row a segment."""
    return np.asarray(rows, dtype=np.float64)


def ratio(above: Any, below: Any) -> Numbers:
    """Element by element above / below, 0 where nothing stands below."""
    above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    return np.asarray(np.where(below > 0, above / np.where(below > 0, below, 1.0), 0.0))
