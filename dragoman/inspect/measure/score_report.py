"""Scores of texts, labels and language models as lines for a person."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from typing import Any

from dragoman.inference import best_baseline
from dragoman.scoring import metrics_by_name

LANGUAGE_MODEL = {
    "word_perplexity": ("word perplexity", ".2f", "e^(nats per word); the end of a line is a word"),
    "perplexity": ("token perplexity", ".2f", "comparable with the same tokenizer alone"),
    "character_perplexity": ("character perplexity", ".4f", "the end of a line is a character"),
    "character_nats": ("nats per character", ".4f", ""),
    "byte_bits": ("bits per byte", ".4f", ""),
    "loss": ("loss", ".4f", "nats per token"),
    "token_accuracy": ("token accuracy", ".2%", ""),
}


def baseline_text(scores: Mapping[str, Any], name: str) -> str:
    """The best baseline by a metric, such as "(copy 44.4)  "; empty if there is none."""
    best = best_baseline(scores.get("baselines", {}), name)
    return "" if best is None else f"({best[0]} {metrics_by_name()[name].format(best[1]).strip()})  "


def score_lines(scores: Mapping[str, Any], hidden: Set[str] = frozenset()) -> Iterator[str]:
    """Scores of texts, without the `hidden` metrics."""
    metrics = {name: metric for name, metric in metrics_by_name().items() if name in scores and name not in hidden}
    width = max([15, *(len(metric.label) + 1 for metric in metrics.values())])
    for name, metric in metrics.items():
        value = math.inf if scores[name] is None else scores[name]  # JSON has no infinity
        shown = f"{metric.format(value):>10}"
        if name in scores.get("intervals", {}):
            low, high = (metric.scale * bound for bound in scores["intervals"][name])
            shown += f"  {low:>6.2f} to {high:>6.2f}"
        shown += f"   {baseline_text(scores, name)}{scores['signatures'].get(name, '')}"
        yield f"{metric.label:<{width}}{shown}".rstrip()
    for unit, kinds in scores.get("errors", {}).items():
        shown = ", ".join(f"{kinds[kind]:,} {kind}" for kind in ("substitutions", "insertions", "deletions"))
        yield f"{unit:<15}{kinds['reference']:>10,}   {shown}"
    if "too_long" in scores:
        share = f"of {scores['segments']:,} references ({scores['too_long'] / scores['segments']:.1%})"
        about = "are too long for this model to output: not in loss, perplexity and token accuracy"
        yield f"{'too long':<15}{scores['too_long']:>10,}   {share} {about}"
    if "unreadable" in scores:
        yield f"{'unreadable':<15}{scores['unreadable']:>10,}"
    yield f"{'segments':<15}{scores['segments']:>10,}"


def label_score_lines(metrics: Mapping[str, Any], scores: Mapping[str, Any]) -> Iterator[str]:
    """Scores of labels, tags or numbers, and precision, recall, F₁ and count of every label."""
    for name, metric in metrics.items():
        if name in scores:
            yield f"{metric.label:<15}{metric.format(scores[name]):>10}   {baseline_text(scores, name)}{metric.about}"
    yield f"{'loss':<15}{scores['loss']:>10.4g}"
    yield f"{'examples':<15}{scores['segments']:>10,}"
    if "unknown" in scores:
        yield f"{'left out':<15}{scores['unknown']:>10,}   labels that training did not have"
    labels: dict[str, dict[str, float]] = scores.get("labels", {})
    if not labels:
        return
    width = max(15, *(len(label) + 2 for label in labels))
    yield f"\n{'label':<{width}}{'precision':>10}{'recall':>10}{'F1':>10}{'count':>10}"
    for label, row in labels.items():
        numbers = "".join(f"{100 * row[name]:>10.2f}" for name in ("precision", "recall", "f1"))
        yield f"{label:<{width}}{numbers}{row['count']:>10,}"


def language_model_lines(scores: Mapping[str, Any]) -> Iterator[str]:
    """Perplexities of a text."""
    for name, (title, form, about) in LANGUAGE_MODEL.items():
        yield f"{title:<22}{format(scores[name], form):>12}   {about}".rstrip()
    counts = (f"{scores[name]:,} {name}" for name in ("tokens", "words", "characters"))
    yield f"{'text':<22}{scores['lines']:>12,}   lines: {', '.join(counts)}, ends of lines included"
    if scores["unknown"]:
        about = "tokens outside the vocabulary, read as <unk>: not comparable with other vocabularies"
        yield f"{'unknown':<22}{scores['unknown']:>12,}   {about}"
