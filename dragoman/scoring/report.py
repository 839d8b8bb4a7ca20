"""Scores of a set of outputs by several metrics, for `dragoman.score`, `evaluate` and validation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dragoman.base import DataError, html_table
from dragoman.scoring import significance
from dragoman.scoring.metric import References, Units
from dragoman.scoring.registry import EVALUATION_DEFAULTS, metrics_by_name, select_metrics, text_statistics
from dragoman.scoring.significance import SystemScore, intervals


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

    def _repr_html_(self) -> str:
        known = {"segments": self.segments, "intervals": self.intervals, "signatures": self.signatures}
        return scores_html({**known, **self})


def scores_html(scores: Mapping[str, Any]) -> str:
    """A table of scores for a notebook, with intervals and signatures where there are some."""
    known, intervals = metrics_by_name(), scores.get("intervals") or {}
    rows = []
    for name, value in scores.items():
        if not isinstance(value, int | float) or name == "segments":
            continue
        shown = known[name].format if name in known else "{:.4g}".format
        interval = " – ".join(map(shown, intervals[name])) if name in intervals else ""
        rows.append((name, shown(value), interval, scores.get("signatures", {}).get(name, "")))
    return html_table(("metric", "score", "95 %", "signature"), rows, f"{scores.get('segments', 0):,} segments")


class SystemScores(list[SystemScore]):
    """The scores of several systems; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        head = ("metric", "system", "score", "95 %", "difference", "p (bootstrap)", "p (randomisation)", "signature")
        rows = [
            (
                own.metric, own.system, f"{own.score:.4g}", " – ".join(f"{end:.4g}" for end in own.interval),
                *((f"{own.versus.difference:+.4g}", f"{own.versus.bootstrap:.3g}", f"{own.versus.randomisation:.3g}")
                  if own.versus else ("", "", "")),
                own.signature,
            )
            for own in self
        ]  # fmt: skip
        return html_table(head, rows, "differences from the first system")


def score_table(
    hypotheses: Sequence[str],
    references: References,
    names: Iterable[str] = (),
    *,
    units: Units = "words",
    draws: int = 0,
    seed: int = 1,
    sources: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The scores by the named metrics, or by the defaults of an evaluation, for JSON.

    With `draws` bootstrap samples the table also has 95 % confidence intervals.
    """
    metrics = select_metrics(tuple(names) or EVALUATION_DEFAULTS[units], units)
    counts = text_statistics(hypotheses, references, metrics, sources)
    table: dict[str, Any] = {"segments": len(hypotheses)}
    table |= {name: metric.score(counts[name]) for name, metric in metrics.items()}
    if draws:
        table["intervals"] = intervals(metrics, counts, draws, seed)
    return table | {"signatures": {name: statistics.signature for name, statistics in counts.items()}}


def reference_lists(references: Sequence[str | Sequence[str]], outputs: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The references of each segment as a list; DataError unless every system has as many outputs."""
    for name, texts in {"references": references, **outputs}.items():
        if isinstance(texts, str):
            raise TypeError(f"{name}: found one text, expected a list of texts")
    for name, texts in outputs.items():
        if len(texts) != len(references):
            raise DataError(f"{name}: found {len(texts):,} texts, expected {len(references):,}, one for each reference")
    if not references:
        raise DataError("nothing to score: found no text")
    return [[texts] if isinstance(texts, str) else list(texts) for texts in references]


def score(
    outputs: Sequence[str],
    references: Sequence[str | Sequence[str]],
    metrics: str | Sequence[str] = (),
    *,
    units: Units = "words",
    draws: int = 0,
    seed: int = 1,
    sources: Sequence[str] | None = None,
) -> Scores:
    """Score texts without a model. Each output has one reference or several.

    With `draws` (1000, say) bootstrap samples the result has 95 % confidence intervals. `sources` are for metrics that
    compare outputs with their sources (`f0.5`).
    """
    truth, names = reference_lists(references, {"outputs": outputs}), _names(metrics)
    table = score_table(outputs, truth, names, units=units, draws=draws, seed=seed, sources=sources)
    segments, signatures, bounds = table.pop("segments"), table.pop("signatures"), table.pop("intervals", {})
    return Scores(table, segments, signatures, {name: (low, high) for name, (low, high) in bounds.items()})


def compare(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str | Sequence[str]],
    metrics: str | Sequence[str] = (),
    *,
    units: Units = "words",
    draws: int = 1000,
    seed: int = 1,
    sources: Sequence[str] | None = None,
) -> SystemScores:
    """Compare the outputs of each system with those of the first, the baseline, on the same references.

    Every score has a 95 % interval; every difference has p-values by paired bootstrap and approximate randomisation.
    """
    if len(systems) < 2:
        raise DataError(f"nothing to compare: found {len(systems)} system, expected a baseline and another")
    chosen = select_metrics(_names(metrics) or EVALUATION_DEFAULTS[units], units)
    truth = reference_lists(references, systems)
    return SystemScores(
        significance.compare_to_baseline(systems, truth, chosen, sources=sources, draws=draws, seed=seed)
    )


def _names(metrics: str | Sequence[str]) -> tuple[str, ...]:
    return (metrics,) if isinstance(metrics, str) else tuple(metrics)
