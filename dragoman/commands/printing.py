"""What several commands print, and how."""

from __future__ import annotations

import json
import sys
from typing import Any

import click


def as_utf8() -> None:
    """Write UTF-8 with bare line feeds whatever the locale: the output is data, not a message."""
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]


def tell_saved(decoding: dict[str, Any]) -> None:
    """Say what a draft was good for."""
    saved = getattr(decoding["method"], "saved", None)
    if saved is not None:
        click.echo(f"draft: {saved}", err=True)


NAMES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "chrf++": "chrF++",
    "ter": "TER",
    "meteor": "METEOR",
    "cider": "CIDEr-D",
    "rouge-1": "ROUGE-1",
    "rouge-2": "ROUGE-2",
    "rouge-l": "ROUGE-L",
    "wer": "WER",
    "cer": "CER",
    "per": "PER",
    "exact_match": "exact match",
    "loss": "loss",
    "perplexity": "perplexity",
    "token_accuracy": "token accuracy",
}
FRACTIONS = {"meteor", "rouge-1", "rouge-2", "rouge-l", "wer", "cer", "per", "exact_match", "token_accuracy"}


def print_scores(scores: dict[str, Any], as_json: bool) -> None:
    """Scores for a person, or as one JSON object."""
    if as_json:
        click.echo(json.dumps(scores))
        return
    signatures = scores["signatures"]
    for key, name in NAMES.items():
        if key in scores:
            value = scores[key]
            shown = f"{100 * value:.2f} %" if key in FRACTIONS else f"{value:.3f}" if key == "loss" else f"{value:.2f}"
            if key in scores.get("intervals", {}):
                low, high = ((100 if key in FRACTIONS else 1) * bound for bound in scores["intervals"][key])
                shown = f"{shown:>10}  {low:>6.2f} to {high:>6.2f}"
            click.echo(f"{name:<15}{shown:>10}   {signatures.get(key, '')}".rstrip())
    for unit, kinds in scores.get("errors", {}).items():
        shown = ", ".join(f"{kinds[kind]:,} {kind}" for kind in ("substitutions", "insertions", "deletions"))
        click.echo(f"{unit:<15}{kinds['reference']:>10,}   {shown}")
    if "too_long" in scores:  # in the words of `check`
        share = f"of {scores['segments']:,} references ({scores['too_long'] / scores['segments']:.1%})"
        about = "are too long to be written at all: not in loss, perplexity and token accuracy"
        click.echo(f"{'too long':<15}{scores['too_long']:>10,}   {share} {about}")
    if "unreadable" in scores:
        click.echo(f"{'unreadable':<15}{scores['unreadable']:>10,}")
    click.echo(f"{'segments':<15}{scores['segments']:>10,}")
