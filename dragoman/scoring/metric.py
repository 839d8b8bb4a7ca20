"""The metric classes: what a metric states about itself, and how it turns outputs into a score.

A text metric counts sufficient statistics for each segment and combines their sums into a score. Corpus scores, scores
of subsets, confidence intervals and significance tests therefore all come from one pass over the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.base import DataError, __version__

FloatArray = NDArray[np.float64]
References = Sequence[Sequence[str]]  # one or more reference texts per segment; their number may differ

Units = Literal["words", "phonemes"]  # what the space-separated symbols of a text are (data.units)
LabelOutputs = Literal["labels", "numbers", "tags"]
OutputKind = Literal["words", "phonemes", "labels", "numbers", "tags", "masked tokens", "likelihood"]


class Statistics(NamedTuple):
    """The counts of every segment, and the signature that says how they were counted."""

    rows: FloatArray  # (S, K), one row per segment; the statistics of a subset are the sum of its rows
    signature: str


@dataclass(frozen=True)
class Metric:
    """What the rest of the package knows about a metric; `dragoman.register` makes it available everywhere.

    Metrics that the model itself measures (loss, perplexity, accuracy on masked tokens) are plain `Metric` objects.
    """

    name: str  # key in JSON, in `--metric` and in `train.metric`
    label: str  # as papers write it
    about: str  # one line for help and reports
    _: KW_ONLY
    outputs: tuple[OutputKind, ...]  # which outputs it scores
    higher_is_better: bool = True
    selects_checkpoints: bool = True  # whether `train.metric` may name it
    percent: bool = True  # a fraction, shown times 100 with a percent sign
    decimals: str = ".2f"  # format of the number that is shown
    needs: str = ""  # what must be installed, downloaded or given first; such a metric is used only where it is named

    @property
    def scale(self) -> int:
        """The factor from a score to the number that reports and plots show."""
        return 100 if self.percent else 1

    @property
    def points(self) -> int:
        """The factor that puts a score on a scale of 100, for an average over metrics."""
        return self.scale

    @property
    def shown_as(self) -> tuple[bool, bool, str]:
        """Direction and format, in which all metrics of one name agree."""
        return self.higher_is_better, self.percent, self.decimals

    def format(self, value: float) -> str:
        return f"{self.scale * value:{self.decimals}}" + (" %" if self.percent else "")


@dataclass(frozen=True, kw_only=True)
class TextMetric(Metric):
    """A metric over texts and their references."""

    count: Callable[
        ..., Statistics
    ]  # (hypotheses, references), or with `uses_sources` (hypotheses, references, sources)
    combine: Callable[[FloatArray], FloatArray]  # summed statistics (..., K) → scores (...)
    outputs: tuple[OutputKind, ...] = ("words", "phonemes")
    uses_sources: bool = False
    has_segment_costs: bool = True  # False where a segment's score depends on the other segments
    sentence_costs: Callable[[Sequence[str], References], list[float]] | None = None  # unless 1 − score will do
    pairwise: Callable[[Sequence[str], Sequence[str]], FloatArray] | None = None  # a faster way to `pairwise_costs`
    terms: Callable[[FloatArray], dict[str, Any]] | None = None  # what the score of summed statistics is made of
    apart: Callable[[Sequence[str], References], dict[str, Any]] | None = None  # and which parts of segments match

    def statistics(
        self, hypotheses: Sequence[str], references: References, sources: Sequence[str] | None = None
    ) -> Statistics:
        """The statistics of every segment; raises DataError for input that cannot be scored."""
        check_segments(hypotheses, references)
        if not self.uses_sources:
            return self.count(hypotheses, references)
        if sources is None:
            raise DataError(
                f"metric: found '{self.name}', which compares outputs with their sources: none are given here"
            )
        return self.count(hypotheses, references, sources)

    def score(self, statistics: Statistics) -> float:
        """The corpus score: of all segments together, not the mean of segment scores."""
        return float(self.combine(statistics.rows.sum(axis=0)))

    def costs(self, hypotheses: Sequence[str], references: References) -> list[float]:
        """The cost of each hypothesis: 0 is perfect; an error rate, or 1 − score on a scale from 0 to 1."""
        assert self.has_segment_costs, f"{self.name} has no costs of single segments"
        if self.sentence_costs is not None:
            return self.sentence_costs(hypotheses, references)
        scores = self.combine(self.statistics(hypotheses, references).rows) / (1 if self.percent else 100)
        costs: list[float] = (1 - scores if self.higher_is_better else scores).tolist()
        return costs

    def pairwise_costs(self, hypotheses: Sequence[str], references: Sequence[str]) -> FloatArray:
        """The cost of each hypothesis if each reference were the only one: (H, R)."""
        if self.pairwise is not None:
            return self.pairwise(hypotheses, references)
        pairs = [(hypothesis, [reference]) for hypothesis in hypotheses for reference in references]
        costs = self.costs([hypothesis for hypothesis, _ in pairs], [reference for _, reference in pairs])
        return np.array(costs, dtype=np.float64).reshape(len(hypotheses), len(references))


@dataclass(frozen=True, kw_only=True)
class LabelMetric(Metric):
    """A metric over all predicted and all true labels, numbers or rows of tags."""

    score: Callable[..., float]  # (predictions, targets), or with `uses_label_set` (predictions, targets, labels)
    uses_label_set: bool = False  # whether `score` needs the whole label set, which a sample may not show
    applies: Callable[[Sequence[Any], Sequence[Any], Sequence[str]], bool] | None = None  # to these; None: always

    @property
    def points(self) -> int:
        return 100  # correlations too, which are shown from 0 to 1


def check_segments(hypotheses: Sequence[str], references: References) -> None:
    """Raise DataError for no segments, unequal counts, or a segment without references."""
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


def signature(references: References, **properties: str) -> str:
    """A signature in sacreBLEU's form, for a metric that is counted here."""
    counts = {len(texts) for texts in references}
    count = str(counts.pop()) if len(counts) == 1 else "var"
    fields = {"nrefs": count, **properties, "version": f"dragoman-{__version__}"}
    return "|".join(f"{name}:{value}" for name, value in fields.items())


def as_rows(rows: Sequence[Sequence[float]]) -> FloatArray:
    return np.asarray(rows, dtype=np.float64)


def mean_score(sums: FloatArray) -> FloatArray:
    """The mean over segments, for statistics (score, 1)."""
    return ratio(sums[..., 0], sums[..., 1])


def ratio(numerator: Any, denominator: Any) -> FloatArray:
    """Element-wise division, 0 where the denominator is 0."""
    numerator, denominator = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    return np.asarray(np.where(denominator > 0, numerator / np.where(denominator > 0, denominator, 1.0), 0.0))
