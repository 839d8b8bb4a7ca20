"""The registry of metrics. Everything that takes a metric's name looks it up here.

`--metric`, `train.metric`, `method.metric`, `train.objective.metric`, help texts, reports and plots follow from the one
`Metric` object that is registered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args, overload

from dragoman.base import ConfigError, DataError, hint
from dragoman.base.config import Table
from dragoman.scoring import corrections, error_rates, label_metrics, meteor, ngram_overlap, perplexity, sacrebleu
from dragoman.scoring.metric import (
    LabelMetric,
    LabelOutputs,
    Metric,
    OutputKind,
    References,
    Statistics,
    TextMetric,
    Units,
)

# Reports list metrics in this order; the first of a kind is what the automatic configuration selects checkpoints by.
BUILT_IN: tuple[Metric, ...] = (
    *sacrebleu.METRICS,
    *meteor.METRICS,
    *ngram_overlap.METRICS,
    *error_rates.METRICS,
    *corrections.METRICS,
    *label_metrics.METRICS,
    *perplexity.METRICS,
)

# What `score` and `compare` report when no metric is named.
SCORE_DEFAULTS: Mapping[Units, tuple[str, ...]] = {
    "words": ("bleu", "chrf", "chrf++", "ter", "wer", "cer", "exact_match"),
    "phonemes": ("bleu", "chrf", "wer", "cer", "per", "exact_match"),
}
# What `evaluate` reports when neither the user nor the task names a metric; every validation measures these too.
EVALUATION_DEFAULTS: Mapping[Units, tuple[str, ...]] = {
    "words": ("bleu", "chrf", "wer", "cer", "exact_match"),
    "phonemes": ("bleu", "chrf", "wer", "cer", "exact_match", "per"),
}

UNITS: tuple[Units, ...] = get_args(Units)


class MetricTable(Table[tuple[OutputKind, str], Metric]):
    """Metrics by kind of output and name.

    One name may have a metric of its own for each kind of output, but all of them agree on direction and format, so
    that a score can be compared and shown by its name alone.
    """

    def add(self, entry: Metric, module: str = "dragoman") -> None:
        for other in self._entries.values():
            if other.name == entry.name and other.shown_as != entry.shown_as:
                raise ConfigError(
                    f"register: found the metric '{entry.name}' in {module}, whose direction or format differs from "
                    f"the one for {', '.join(other.outputs)}; expected the same, or another name"
                )
        super().add(entry, module)


METRICS = MetricTable("metric", lambda metric: [(kind, metric.name) for kind in metric.outputs], BUILT_IN)


@overload
def metrics_for(outputs: Units) -> dict[str, TextMetric]: ...
@overload
def metrics_for(outputs: LabelOutputs) -> dict[str, LabelMetric]: ...
@overload
def metrics_for(outputs: OutputKind) -> dict[str, Any]: ...
def metrics_for(outputs: OutputKind) -> dict[str, Any]:
    """The metrics of one kind of output, by name, but for those that need more than outputs and references."""
    return {name: metric for (kind, name), metric in METRICS.items() if kind == outputs and not metric.needs}


def demanding_metrics() -> dict[str, str]:
    """What must be installed, downloaded or given for the text metrics that `metrics_for` leaves out."""
    return {name: metric.needs for (_, name), metric in METRICS.items() if metric.needs}


def metrics_by_name() -> dict[str, Metric]:
    """One metric for every registered name; its label, direction and format hold for all metrics of that name."""
    table: dict[str, Metric] = {}
    for metric in METRICS.values():
        table.setdefault(metric.name, metric)
    return table


def higher_is_better(name: str) -> bool:
    return metrics_by_name()[name].higher_is_better


def checkpoint_metrics(outputs: OutputKind) -> tuple[str, ...]:
    """What `train.metric` may be for a task with such outputs, loss first."""
    others = (name for name, metric in metrics_for(outputs).items() if metric.selects_checkpoints and name != "loss")
    return ("loss", *others)


def segment_cost_metrics() -> dict[str, TextMetric]:
    """The metrics by which minimum Bayes risk decoding and minimum risk training can compare single outputs."""
    table: dict[str, TextMetric] = {}
    for units in UNITS:
        for name, metric in metrics_for(units).items():
            if metric.has_segment_costs:
                table.setdefault(name, metric)
    return table


def select_metrics(names: Iterable[str] | None = None, units: Units = "words") -> dict[str, TextMetric]:
    """The text metrics of these names, or the defaults of `score`; "all" means every one without demands."""
    wanted = tuple(names or SCORE_DEFAULTS[units])
    if "all" in wanted:
        return metrics_for(units)
    table: dict[str, Any] = {name: metric for (kind, name), metric in METRICS.items() if kind == units}
    for name in wanted:
        if name in table:
            continue
        if needed := [other for other in UNITS if name in metrics_for(other)]:
            raise DataError(f'metric: found \'{name}\', which needs units "{needed[0]}"; found units "{units}"')
        raise DataError(f"metric: found '{name}', which is no metric. {hint(name, table)}")
    return {name: table[name] for name in wanted}


def text_statistics(
    hypotheses: Sequence[str],
    references: References,
    metrics: Mapping[str, TextMetric],
    sources: Sequence[str] | None = None,
) -> dict[str, Statistics]:
    return {name: metric.statistics(hypotheses, references, sources) for name, metric in metrics.items()}
