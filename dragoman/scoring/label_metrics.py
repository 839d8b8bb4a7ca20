"""The metrics of labels, numbers, tags and masked tokens: those of GLUE (Wang et al. 2018), and F₁ of spans."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dragoman.base import DataError, hint
from dragoman.scoring.metric import FloatArray, LabelMetric, Metric


def _check(predictions: Sequence[object], targets: Sequence[object], minimum: int = 1) -> None:
    if len(predictions) != len(targets):
        raise DataError(
            f"cannot score {len(predictions)} predictions against {len(targets)} targets: expected as many of each"
        )
    if len(predictions) < minimum:
        raise DataError(f"nothing to score: found {len(predictions)} predictions, expected at least {minimum}")


def accuracy(predictions: Sequence[Hashable], targets: Sequence[Hashable]) -> float:
    _check(predictions, targets)
    return sum(prediction == target for prediction, target in zip(predictions, targets, strict=True)) / len(targets)


class FScore(NamedTuple):
    """Precision, recall and their harmonic mean; each is 0 where its denominator is 0."""

    precision: float
    recall: float
    f1: float


def f_score(true_positives: int, predicted: int, actual: int) -> FScore:
    return FScore(
        true_positives / predicted if predicted else 0.0,
        true_positives / actual if actual else 0.0,
        2 * true_positives / (predicted + actual) if predicted + actual else 0.0,
    )


def class_scores(predictions: Sequence[Hashable], targets: Sequence[Hashable]) -> dict[Hashable, FScore]:
    """The F₁ of every label that was predicted or is a target."""
    _check(predictions, targets)
    correct = Counter(target for prediction, target in zip(predictions, targets, strict=True) if prediction == target)
    predicted, actual = Counter(predictions), Counter(targets)
    return {label: f_score(correct[label], predicted[label], actual[label]) for label in actual | predicted}


def macro_f1(predictions: Sequence[Hashable], targets: Sequence[Hashable]) -> float:
    """The unweighted mean F₁ of all labels that were predicted or are targets."""
    scores = class_scores(predictions, targets)
    return sum(score.f1 for score in scores.values()) / len(scores)


def matthews(predictions: Sequence[Hashable], targets: Sequence[Hashable]) -> float:
    """Matthews correlation (1975) between −1 and 1, for any number of labels (Gorodkin 2004); CoLA's metric.

    0 where all predictions or all targets are the same.
    """
    _check(predictions, targets)
    count = len(predictions)
    correct = sum(prediction == target for prediction, target in zip(predictions, targets, strict=True))
    predicted, actual = Counter(predictions), Counter(targets)
    covariance = count * correct - sum(predicted[label] * actual[label] for label in predicted)
    variances = [count**2 - sum(size**2 for size in sizes.values()) for sizes in (predicted, actual)]
    return covariance / math.sqrt(variances[0] * variances[1]) if all(variances) else 0.0


def mean_squared_error(predictions: Sequence[float], targets: Sequence[float]) -> float:
    _check(predictions, targets)
    return float(np.mean((np.asarray(predictions, dtype=np.float64) - np.asarray(targets, dtype=np.float64)) ** 2))


def pearson(predictions: Sequence[float], targets: Sequence[float]) -> float:
    """The linear correlation between −1 and 1; 0 where one side is constant."""
    _check(predictions, targets, minimum=2)
    sides = [np.asarray(side, dtype=np.float64) for side in (predictions, targets)]
    if any((side == side[0]).all() for side in sides):  # the mean of equal numbers need not equal them
        return 0.0
    left, right = (side - side.mean() for side in sides)
    # Dividing each side by its largest value keeps tiny or huge numbers from underflow and overflow when squared.
    left, right = left / np.abs(left).max(), right / np.abs(right).max()
    return float(np.clip(left @ right / math.sqrt(float(left @ left) * float(right @ right)), -1.0, 1.0))


def ranks(values: Sequence[float]) -> FloatArray:
    """The rank of every number, from 1; equal numbers share the mean of their ranks."""
    _, inverse, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse])


def spearman(predictions: Sequence[float], targets: Sequence[float]) -> float:
    """The Pearson correlation of ranks: 1 for any increasing relation."""
    _check(predictions, targets, minimum=2)
    return pearson(list(ranks(predictions)), list(ranks(targets)))


# --- tagging


TagSpan = tuple[str, int, int]  # label, first word, and the word after the last


def is_bio_tag(tag: str) -> bool:
    return tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2)


def bio_spans(tags: Sequence[str]) -> set[TagSpan]:
    """The spans of a row of BIO tags (B-PER, I-PER, O).

    An I- tag that continues no span of its label starts one, as in the CoNLL evaluation script.
    """
    spans: set[TagSpan] = set()
    label, start = "", 0
    for position, tag in enumerate([*tags, "O"]):
        if not is_bio_tag(tag):
            raise DataError(f"tag {position + 1}: found '{tag}', expected O, B-LABEL or I-LABEL")
        prefix, _, name = tag.partition("-")
        if label and (prefix != "I" or name != label):
            spans.add((label, start, position))
            label = ""
        if tag != "O" and not label:
            label, start = name, position
    return spans


def span_f1(predictions: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> FScore:
    """The F₁ of whole spans: label and both ends must be correct (Tjong Kim Sang and De Meulder 2003)."""
    _check(predictions, targets)
    for number, (predicted, actual) in enumerate(zip(predictions, targets, strict=True), 1):
        if len(predicted) != len(actual):
            raise DataError(f"sentence {number}: found {len(predicted)} tags, expected {len(actual)}")
    pairs = [(bio_spans(predicted), bio_spans(actual)) for predicted, actual in zip(predictions, targets, strict=True)]
    return f_score(
        sum(len(predicted & actual) for predicted, actual in pairs),
        sum(len(predicted) for predicted, _ in pairs),
        sum(len(actual) for _, actual in pairs),
    )


# --- the table of metrics


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


def bio_tags(predictions: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], labels: Sequence[str]) -> bool:
    return all(is_bio_tag(tag) for row in (*predictions, *targets) for tag in row)


def two_labels(predictions: Sequence[str], targets: Sequence[str], labels: Sequence[str]) -> bool:
    return len({*labels, *predictions, *targets}) <= 2


label = partial(LabelMetric, outputs=("labels",))
number = partial(LabelMetric, outputs=("numbers",), percent=False, decimals=".4g")
correlation = partial(number, applies=lambda predictions, targets, labels: len(predictions) >= 2)
tags = partial(LabelMetric, outputs=("tags",))
masked = partial(Metric, outputs=("masked tokens",))  # the model measures these; there are no outputs to compare
METRICS: tuple[Metric, ...] = (
    label("accuracy", "accuracy", "share of correct labels", score=accuracy),
    label("macro_f1", "macro F1", "mean F₁ over all labels", score=macro_f1),
    label("f1", "F1", "F₁ of the second of two labels", score=binary_f1, uses_label_set=True, applies=two_labels),
    label("matthews", "Matthews", "Matthews correlation", score=matthews, percent=False, decimals=".4g"),
    number("mse", "MSE", "mean squared error", score=flattened(mean_squared_error), higher_is_better=False),
    correlation("pearson", "Pearson", "linear correlation", score=flattened(pearson)),
    correlation("spearman", "Spearman", "rank correlation", score=flattened(spearman)),
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
