"""Tables of metrics for labels, numbers and tags; the functions themselves stand in labels.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.errors import DataError, hint
from dragoman.scoring.labels import (
    accuracy,
    class_scores,
    macro_f1,
    matthews,
    mean_squared_error,
    pearson,
    span_f1,
    spearman,
)


@dataclass(frozen=True)
class AnswerMetric:
    """One row of a table: a number from all answers and all truths."""

    title: str
    about: str
    score: Callable[..., float]
    higher: bool = True
    fraction: bool = True  # shown as a percentage
    of_all_labels: bool = (
        False  # `score` is also given the labels that there are, whether these examples have them or not
    )

    def show(self, value: float) -> str:
        """A score as people read it."""
        return f"{100 * value:.2f} %" if self.fraction else f"{value:.4g}"


def second_f1(found: Sequence[str], expected: Sequence[str], labels: Sequence[str] = ()) -> float:
    """The F₁ of the second of two labels in their sorted order, such as "1" of "0" and "1" (GLUE's MRPC)."""
    names = sorted({*labels, *found, *expected})
    if len(names) > 2:
        raise DataError(f"metric: found 'f1' with {len(names)} labels, expected two; macro_f1 takes any number")
    scores = class_scores(found, expected)
    return scores[names[1]].f1 if len(names) == 2 and names[1] in scores else 0.0


def flat(score: Callable[[Sequence[str], Sequence[str]], float]) -> Callable[[Sequence[Any], Sequence[Any]], float]:
    """A metric of labels on all words of all sentences."""

    def of_words(found: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> float:
        return score([tag for row in found for tag in row], [tag for row in expected for tag in row])

    return of_words


def whole_spans(found: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> float:
    """The F₁ of whole spans of BIO tags."""
    try:
        return span_f1(found, expected).f1
    except DataError as error:
        raise DataError(f"span_f1 needs tags of spans; {error}") from None


Metrics = Mapping[str, AnswerMetric]
LABEL_METRICS: Metrics = {
    "accuracy": AnswerMetric("accuracy", "labels that are right", accuracy),
    "macro_f1": AnswerMetric("macro F1", "mean F₁ of all labels", macro_f1),
    "f1": AnswerMetric("F1", "F₁ of the second of two labels", second_f1, of_all_labels=True),
    "matthews": AnswerMetric("Matthews", "correlation of Matthews", matthews, fraction=False),
}
NUMBER_METRICS: Metrics = {
    "mse": AnswerMetric("MSE", "mean squared error", mean_squared_error, higher=False, fraction=False),
    "pearson": AnswerMetric("Pearson", "linear correlation", pearson, fraction=False),
    "spearman": AnswerMetric("Spearman", "correlation of ranks", spearman, fraction=False),
}
TAG_METRICS: Metrics = {
    "accuracy": AnswerMetric("accuracy", "words whose tag is right", flat(accuracy)),
    "macro_f1": AnswerMetric("macro F1", "mean F₁ of all tags", flat(macro_f1)),
    "span_f1": AnswerMetric("span F1", "F₁ of whole spans of BIO tags", whole_spans),
    "exact_match": AnswerMetric("exact match", "sentences wholly right", accuracy),
}


def measured(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """Such a score is summed up while tokens are told; there are no answers to compare."""
    raise NotImplementedError


HIDDEN_METRICS: Metrics = {
    "accuracy": AnswerMetric("accuracy", "hidden tokens that are told right", measured),
    "pseudo_perplexity": AnswerMetric(
        "perplexity", "pseudo-perplexity of hidden tokens", measured, higher=False, fraction=False
    ),
    "pair_accuracy": AnswerMetric("pair accuracy", "texts known to follow or not", measured),
}
ALL: Metrics = {**LABEL_METRICS, **NUMBER_METRICS, **TAG_METRICS}


def usual(metrics: Metrics, found: Sequence[Any], expected: Sequence[Any], labels: Sequence[str] = ()) -> list[str]:
    """The metrics that make sense of these answers when none is asked for."""
    names = list(metrics)
    if "f1" in metrics and len({*labels, *found, *expected}) > 2:
        names.remove("f1")
    if "pearson" in metrics and len(found) < 2:
        names = ["mse"]
    if "span_f1" in metrics and not all(spanning(tag) for row in (*found, *expected) for tag in row):
        names.remove("span_f1")
    return names


def spanning(tag: str) -> bool:
    """Whether a tag is O, B-LABEL or I-LABEL."""
    return tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2)


def check_names(metrics: Metrics, names: Sequence[str]) -> None:
    """Refuse names that are no metric here."""
    for name in names:
        if name != "all" and name not in metrics:
            raise DataError(f"metric: found '{name}', which is no metric of this task. {hint(name, metrics)}")


def score_answers(
    metrics: Metrics,
    found: Sequence[Any],
    expected: Sequence[Any],
    names: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> dict[str, float]:
    """The scores of these names, or of all that make sense; `labels` are all that a run knows."""
    check_names(metrics, names)
    wanted = usual(metrics, found, expected, labels) if not names or "all" in names else names
    given = {name: (labels,) if metrics[name].of_all_labels else () for name in wanted}
    return {name: float(metrics[name].score(found, expected, *given[name])) for name in wanted}


def report(found: Sequence[str], expected: Sequence[str]) -> dict[str, dict[str, float]]:
    """Precision, recall, F₁ and how many there are, of every label, the most frequent first."""
    counts = Counter(expected)
    scores = class_scores(found, expected)
    names = sorted((str(name) for name in scores), key=lambda name: (-counts[name], name))
    return {name: {**scores[name]._asdict(), "count": counts[name]} for name in names}
