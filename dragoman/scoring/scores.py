"""The result of `dragoman.score`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dragoman.errors import DataError
from dragoman.scoring.metric import Units
from dragoman.scoring.registry import EVALUATION_DEFAULTS, select_metrics
from dragoman.scoring.report import score_table
from dragoman.scoring.significance import SystemScore, compare


@dataclass(frozen=True)
class Scores(Mapping[str, float]):
    """Scores by the name of their metric: `scores["bleu"]`, `dict(scores)`."""

    values_by_name: dict[str, float] = field(repr=False)
    segments: int
    signatures: dict[str, str]  # how each metric was counted, to be published with its score
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)  # 95 %, if asked for

    def __getitem__(self, name: str) -> float:
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in self.items())
        return f"<Scores of {self.segments:,} segments: {shown}>"


def several(references: Sequence[str | Sequence[str]], outputs: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The references of each segment as a list; DataError unless every system has as many outputs."""
    for name, texts in {"references": references, **outputs}.items():
        if isinstance(texts, str):
            raise TypeError(f"{name}: found one text, expected a list of texts")
    for name, texts in outputs.items():
        if len(texts) != len(references):
            raise DataError(f"{name}: found {len(texts):,} texts, expected {len(references):,}, one for each reference")
    if not references:
        raise DataError("nothing to score: found no text")
    return [[own] if isinstance(own, str) else list(own) for own in references]


def score_outputs(
    outputs: Sequence[str],
    references: Sequence[str | Sequence[str]],
    metrics: str | Sequence[str],
    units: Units,
    draws: int,
    seed: int,
) -> Scores:
    """The scores by the named metrics, or by the defaults of an evaluation."""
    names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    table = score_table(outputs, several(references, {"outputs": outputs}), names, units=units, draws=draws, seed=seed)
    segments, signatures, bounds = table.pop("segments"), table.pop("signatures"), table.pop("intervals", {})
    return Scores(table, segments, signatures, {name: (low, high) for name, (low, high) in bounds.items()})


def compare_outputs(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str | Sequence[str]],
    metrics: str | Sequence[str],
    units: Units,
    draws: int,
    seed: int,
) -> list[SystemScore]:
    """The scores of each system, compared with the first."""
    if len(systems) < 2:
        raise DataError(f"nothing to compare: found {len(systems)} system, expected a baseline and another")
    names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    chosen = select_metrics(names or EVALUATION_DEFAULTS[units], units)
    return compare(systems, several(references, systems), chosen, draws=draws, seed=seed)
