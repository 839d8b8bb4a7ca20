"""Printing that several commands share: data to standard output, messages to standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Set
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dragoman.inference import InputTooLongError, Labeler, Predictor, UnseenInputs


def as_utf8() -> None:
    """Make standard output UTF-8 with bare line feeds in every locale: it is data, not a message."""
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]


def print_prompt(interactive: bool, answer: str = "output") -> None:
    """Tell a person who types that the command waits for lines."""
    if interactive:
        click.echo(f"type a line and press Enter for its {answer}; Ctrl+D ends", err=True)


def print_message(message: str) -> None:
    click.echo(message, err=True)


def print_warning(message: str) -> None:
    print_message(f"warning: {message}")


def print_unseen(unseen: UnseenInputs) -> None:
    """Print one line about the inputs with characters or words that training did not have, if there are any."""
    if message := unseen.message():
        print_warning(message)


class Refused:
    """Inputs that were too long to read: each has an empty output, and the command ends with exit code 1."""

    def __init__(self) -> None:
        self.errors: dict[int, str] = {}  # by the number of the input

    def add(self, number: int, error: InputTooLongError) -> None:
        """Say at once which input was refused, and why."""
        self.errors[number] = error.reason
        print_warning(f"{error}; its output is empty")

    def exit(self) -> None:
        """End the command with exit code 1 if some input has no output."""
        if self.errors:
            count = f"{len(self.errors):,} input{'s were' if len(self.errors) > 1 else ' was'}"
            click.echo(f"{count} too long and ha{'ve' if len(self.errors) > 1 else 's'} no output", err=True)
            raise click.exceptions.Exit(1)


def print_method_report(predictor: Predictor) -> None:
    """Print what the decoding method has to say after all inputs, such as the calls that a draft saved."""
    method = predictor.method(predictor.defaults)
    if method is not None and (line := method.report()):
        click.echo(line, err=True)


def baseline_text(scores: dict[str, Any], metric: str) -> str:
    """The best baseline by a metric, such as "(copy 44.4)  "; empty if there is none."""
    from dragoman.inference import best_baseline
    from dragoman.scoring import metrics_by_name

    best = best_baseline(scores.get("baselines", {}), metric)
    return "" if best is None else f"({best[0]} {metrics_by_name()[metric].format(best[1]).strip()})  "


def print_scores(scores: dict[str, Any], as_json: bool, hidden: Set[str] = frozenset()) -> None:
    """Scores for a person, without the `hidden` metrics, or as one JSON object."""
    if as_json:
        click.echo(json.dumps(scores))
        return
    from dragoman.scoring import metrics_by_name

    metrics = {name: metric for name, metric in metrics_by_name().items() if name in scores and name not in hidden}
    width = max(15, *(len(metric.label) + 1 for metric in metrics.values()))
    for name, metric in metrics.items():
        value = math.inf if scores[name] is None else scores[name]  # JSON has no infinity
        shown = f"{metric.format(value):>10}"
        if name in scores.get("intervals", {}):
            low, high = (metric.scale * bound for bound in scores["intervals"][name])
            shown += f"  {low:>6.2f} to {high:>6.2f}"
        shown += f"   {baseline_text(scores, name)}{scores['signatures'].get(name, '')}"
        click.echo(f"{metric.label:<{width}}{shown}".rstrip())
    for unit, kinds in scores.get("errors", {}).items():
        shown = ", ".join(f"{kinds[kind]:,} {kind}" for kind in ("substitutions", "insertions", "deletions"))
        click.echo(f"{unit:<15}{kinds['reference']:>10,}   {shown}")
    if "too_long" in scores:
        share = f"of {scores['segments']:,} references ({scores['too_long'] / scores['segments']:.1%})"
        about = "are too long for this model to output: not in loss, perplexity and token accuracy"
        click.echo(f"{'too long':<15}{scores['too_long']:>10,}   {share} {about}")
    if "unreadable" in scores:
        click.echo(f"{'unreadable':<15}{scores['unreadable']:>10,}")
    click.echo(f"{'segments':<15}{scores['segments']:>10,}")


def print_label_scores(labeler: Labeler, scores: dict[str, Any], as_json: bool) -> None:
    """Scores for a person, and precision, recall, F₁ and count of every label; or all as one JSON object."""
    if as_json:
        click.echo(json.dumps(scores, ensure_ascii=False))
        return
    from dragoman.scoring import metrics_for

    for name, metric in metrics_for(labeler.head_decoder.outputs).items():
        if name in scores:
            baseline = baseline_text(scores, name)
            click.echo(f"{metric.label:<15}{metric.format(scores[name]):>10}   {baseline}{metric.about}")
    click.echo(f"{'loss':<15}{scores['loss']:>10.4g}")
    click.echo(f"{'examples':<15}{scores['segments']:>10,}")
    if "unknown" in scores:
        click.echo(f"{'left out':<15}{scores['unknown']:>10,}   labels that training did not have")
    labels: dict[str, dict[str, float]] = scores.get("labels", {})
    if not labels:
        return
    width = max(15, *(len(label) + 2 for label in labels))
    click.echo(f"\n{'label':<{width}}{'precision':>10}{'recall':>10}{'F1':>10}{'count':>10}")
    for label, row in labels.items():
        numbers = "".join(f"{100 * row[name]:>10.2f}" for name in ("precision", "recall", "f1"))
        click.echo(f"{label:<{width}}{numbers}{row['count']:>10,}")
