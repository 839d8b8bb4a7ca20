"""The metrics of labels, numbers, tags and masked tokens; labels.py has the functions that compute them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from dragoman.errors import DataError, hint
from dragoman.scoring.labels import (
    accuracy,
    class_scores,
    is_bio_tag,
    macro_f1,
    matthews,
    mean_squared_error,
    pearson,
    span_f1,
    spearman,
)
from dragoman.scoring.metric import LabelMetric, Metric


def binary_f1(predictions: Sequence[str], targets: Sequence[str], labels: Sequence[str] = ()) -> float:
    """The F₁ of the positive label: the second of two in sorted order, such as "1" of "0" and "1" (GLUE's MRPC)."""
    names = sorted({*labels, *predictions, *targets})
    if len(names) > 2:
        raise DataError(f"metric: found 'f1' with {len(names)} labels, expected two; macro_f1 takes any number")
    scores = class_scores(predictions, targets)
    return scores[names[1]].f1 if len(names) == 2 and names[1] in scores else 0.0


def flattened(score: Callable[..., float]) -> Callable[..., float]:
    """A metric of labels or numbers, applied to all tags or numbers of all rows; a row may be one number."""

    def flat(rows: Sequence[Any]) -> list[Any]:
        return [item for row in rows for item in (row if isinstance(row, tuple | list) else (row,))]

    return lambda predictions, targets: score(flat(predictions), flat(targets))


def bio_span_f1(predictions: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> float:
    try:
        return span_f1(predictions, targets).f1
    except DataError as error:
        raise DataError(f"span_f1 needs BIO tags; {error}") from None


def two_labels(predictions: Sequence[str], targets: Sequence[str], labels: Sequence[str]) -> bool:
    return len({*labels, *predictions, *targets}) <= 2


def two_examples(predictions: Sequence[Any], targets: Sequence[Any], labels: Sequence[str]) -> bool:
    return len(predictions) >= 2


def bio_tags(predictions: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], labels: Sequence[str]) -> bool:
    return all(is_bio_tag(tag) for row in (*predictions, *targets) for tag in row)


label = partial(LabelMetric, outputs=("labels",))
number = partial(LabelMetric, outputs=("numbers",), percent=False, decimals=".4g")
tags = partial(LabelMetric, outputs=("tags",))
masked = partial(Metric, outputs=("masked tokens",))  # the model measures these; there are no outputs to compare
METRICS: tuple[Metric, ...] = (
    label("accuracy", "accuracy", "share of correct labels", score=accuracy),
    label("macro_f1", "macro F1", "mean F₁ over all labels", score=macro_f1),
    label("f1", "F1", "F₁ of the second of two labels", score=binary_f1, uses_label_set=True, applies=two_labels),
    label("matthews", "Matthews", "Matthews correlation", score=matthews, percent=False, decimals=".4g"),
    number("mse", "MSE", "mean squared error", score=flattened(mean_squared_error), higher_is_better=False),
    number("pearson", "Pearson", "linear correlation", score=flattened(pearson), applies=two_examples),
    number("spearman", "Spearman", "rank correlation", score=flattened(spearman), applies=two_examples),
    tags("accuracy", "accuracy", "share of words with the correct tag", score=flattened(accuracy)),
    tags("macro_f1", "macro F1", "mean F₁ over all tags", score=flattened(macro_f1)),
    tags("span_f1", "span F1", "F₁ of whole spans of BIO tags", score=bio_span_f1, applies=bio_tags),
    tags("exact_match", "exact match", "share of sentences with every tag correct", score=accuracy),
    masked("accuracy", "accuracy", "share of masked tokens predicted correctly"),
    masked(
        "pseudo_perplexity",
        "perplexity",
        "pseudo-perplexity of masked tokens",
        higher_is_better=False,
        selects_checkpoints=False,
        percent=False,
        decimals=".4g",
    ),
    masked(
        "pair_accuracy",
        "pair accuracy",
        "share of text pairs classified correctly as consecutive or not",
        selects_checkpoints=False,
    ),
)


def applicable(
    metrics: Mapping[str, LabelMetric], predictions: Sequence[Any], targets: Sequence[Any], labels: Sequence[str] = ()
) -> list[str]:
    """The metrics that are defined for these outputs."""
    return [
        name
        for name, metric in metrics.items()
        if metric.applies is None or metric.applies(predictions, targets, labels)
    ]


def check_metric_names(metrics: Mapping[str, Metric], names: Sequence[str]) -> None:
    for name in names:
        if name != "all" and name not in metrics:
            raise DataError(f"metric: found '{name}', which is no metric of this task. {hint(name, metrics)}")


def score_labels(
    metrics: Mapping[str, LabelMetric],
    predictions: Sequence[Any],
    targets: Sequence[Any],
    names: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> dict[str, float]:
    """The scores by the named metrics, or by all that apply; `labels` is the label set of the run."""
    check_metric_names(metrics, names)
    wanted = applicable(metrics, predictions, targets, labels) if not names or "all" in names else names
    extra = {name: (labels,) if metrics[name].uses_label_set else () for name in wanted}
    return {name: float(metrics[name].score(predictions, targets, *extra[name])) for name in wanted}


def classification_report(predictions: Sequence[str], targets: Sequence[str]) -> dict[str, dict[str, float]]:
    """Precision, recall, F₁ and number of targets of every label, most frequent first."""
    counts = Counter(targets)
    scores = class_scores(predictions, targets)
    names = sorted((str(name) for name in scores), key=lambda name: (-counts[name], name))
    return {name: {**scores[name]._asdict(), "count": counts[name]} for name in names}
