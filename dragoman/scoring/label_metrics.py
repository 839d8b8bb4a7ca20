"""The metrics of labels, numbers, tags and masked tokens; labels.py has the functions that compute them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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


def over_words(score: Callable[[Sequence[str], Sequence[str]], float]) -> Callable[..., float]:
    """A metric of labels, applied to the tags of all words of all sentences."""

    def score_words(predictions: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> float:
        return score([tag for row in predictions for tag in row], [tag for row in targets for tag in row])

    return score_words


def over_numbers(score: Callable[[Sequence[float], Sequence[float]], float]) -> Callable[..., float]:
    """A metric of numbers, applied to all numbers of all rows, which have one or several."""

    def flat(rows: Sequence[Any]) -> list[float]:
        return [number for row in rows for number in (row if isinstance(row, tuple) else (row,))]

    def score_numbers(predictions: Sequence[Any], targets: Sequence[Any]) -> float:
        return score(flat(predictions), flat(targets))

    return score_numbers


def bio_span_f1(predictions: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> float:
    """The F₁ of whole spans of BIO tags."""
    try:
        return span_f1(predictions, targets).f1
    except DataError as error:
        raise DataError(f"span_f1 needs BIO tags; {error}") from None


def two_labels(predictions: Sequence[str], targets: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether the labels are at most two."""
    return len({*labels, *predictions, *targets}) <= 2


def two_examples(predictions: Sequence[Any], targets: Sequence[Any], labels: Sequence[str]) -> bool:
    """Whether there are enough examples for a correlation."""
    return len(predictions) >= 2


def bio_tags(predictions: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], labels: Sequence[str]) -> bool:
    """Whether all tags are O, B-LABEL or I-LABEL."""
    return all(is_bio_tag(tag) for row in (*predictions, *targets) for tag in row)


METRICS: tuple[Metric, ...] = (
    LabelMetric(
        name="accuracy", label="accuracy", about="share of correct labels", outputs=("labels",), score=accuracy
    ),
    LabelMetric(
        name="macro_f1", label="macro F1", about="mean F₁ over all labels", outputs=("labels",), score=macro_f1
    ),
    LabelMetric(
        name="f1",
        label="F1",
        about="F₁ of the second of two labels",
        outputs=("labels",),
        score=binary_f1,
        uses_label_set=True,
        applies=two_labels,
    ),
    LabelMetric(
        name="matthews",
        label="Matthews",
        about="Matthews correlation",
        outputs=("labels",),
        percent=False,
        decimals=".4g",
        score=matthews,
    ),
    LabelMetric(
        name="mse",
        label="MSE",
        about="mean squared error",
        outputs=("numbers",),
        higher_is_better=False,
        percent=False,
        decimals=".4g",
        score=over_numbers(mean_squared_error),
    ),
    LabelMetric(
        name="pearson",
        label="Pearson",
        about="linear correlation",
        outputs=("numbers",),
        percent=False,
        decimals=".4g",
        score=over_numbers(pearson),
        applies=two_examples,
    ),
    LabelMetric(
        name="spearman",
        label="Spearman",
        about="rank correlation",
        outputs=("numbers",),
        percent=False,
        decimals=".4g",
        score=over_numbers(spearman),
        applies=two_examples,
    ),
    LabelMetric(
        name="accuracy",
        label="accuracy",
        about="share of words with the correct tag",
        outputs=("tags",),
        score=over_words(accuracy),
    ),
    LabelMetric(
        name="macro_f1",
        label="macro F1",
        about="mean F₁ over all tags",
        outputs=("tags",),
        score=over_words(macro_f1),
    ),
    LabelMetric(
        name="span_f1",
        label="span F1",
        about="F₁ of whole spans of BIO tags",
        outputs=("tags",),
        score=bio_span_f1,
        applies=bio_tags,
    ),
    LabelMetric(
        name="exact_match",
        label="exact match",
        about="share of sentences with every tag correct",
        outputs=("tags",),
        score=accuracy,
    ),
    # The model measures these on masked tokens; there are no outputs to compare.
    Metric(
        name="accuracy",
        label="accuracy",
        about="share of masked tokens predicted correctly",
        outputs=("masked tokens",),
    ),
    Metric(
        name="pseudo_perplexity",
        label="perplexity",
        about="pseudo-perplexity of masked tokens",
        outputs=("masked tokens",),
        higher_is_better=False,
        selects_checkpoints=False,
        percent=False,
        decimals=".4g",
    ),
    Metric(
        name="pair_accuracy",
        label="pair accuracy",
        about="share of text pairs classified correctly as consecutive or not",
        outputs=("masked tokens",),
        selects_checkpoints=False,
    ),
)


def applicable(
    metrics: Mapping[str, LabelMetric], predictions: Sequence[Any], targets: Sequence[Any], labels: Sequence[str] = ()
) -> list[str]:
    """The metrics that are defined for these outputs."""
    return [name for name, metric in metrics.items() if metric.applies(predictions, targets, labels)]


def check_metric_names(metrics: Mapping[str, Metric], names: Sequence[str]) -> None:
    """Raise DataError for a name that is no metric of this task."""
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
