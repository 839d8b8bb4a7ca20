"""Explain a ladder of architectures in words, with the figures of its own runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.reports.inspection import View


def _table(views: Sequence[View], kind: str) -> Any:
    return next((view.data for view in views if view.kind == kind), None)


def story_view(steps: Sequence[tuple[str, str, str]], views: Sequence[View]) -> View:
    """One paragraph for each step (name, what changes, what theory expects), with what these runs show."""
    rows = {row["name"]: row for row in _table(views, "scores")["rows"]}
    metric = _table(views, "scores")["metrics"][0]
    lengths = {system["name"]: system["points"] for system in _table(views, "lengths")["systems"]}
    labels, unit = (_table(views, "lengths")[key] for key in ("buckets", "unit"))
    flows = _table(views, "flows")
    told = []
    before: Mapping[str, Any] | None = None
    for name, change, why in steps:
        row = rows[name]
        score = row["scores"][metric["name"]]
        lines = [change, why, _score_line(metric["label"], score, before, metric["name"])]
        points = lengths[name]
        if len(points) > 1:
            lines.append(
                f"From the shortest sources ({labels[0]} {unit}) to the longest ({labels[-1]}) it goes from "
                f"{points[0][0]:.1f} to {points[-1][0]:.1f}."
            )
        if flows is not None:
            lines += [
                f"In its encoder a gradient changes by a factor of {10 ** flow['slope']:.2f} with every step back."
                for flow in flows["flows"]
                if flow["name"].startswith(f"{name}: ")
            ]
        if row.get("activation_bytes") is None:
            lines.append(f"It was fitted in {row['training_seconds']:.0f} s, without gradients.")
        elif row.get("training_tokens_per_second"):
            lines.append(
                f"It has {row['parameters'] / 1e6:.1f} million parameters, trained on "
                f"{row['training_tokens_per_second']:,.0f} tokens a second and decodes "
                f"{row['decoding_sentences_per_second']:,.0f} sentences a second with beam {row['beam']} in batches of "
                f"{row['batch_size']}."
            )
        told.append({"name": name, "text": " ".join(lines), "score": score["score"]})
        before = row
    return View(
        "story",
        "The ladder",
        "Each step changes one thing and trains on the same pairs; the networks have the same batches and budget. The "
        "figures in the text are those of these runs.",
        {"steps": told, "metric": metric["label"]},
    )


def _score_line(label: str, score: Mapping[str, Any], before: Mapping[str, Any] | None, name: str) -> str:
    line = f"Here it scores {score['score']:.1f} {label} ({score['low']:.1f} to {score['high']:.1f})"
    if before is None:
        return line + "."
    difference = score["score"] - before["scores"][name]["score"]
    if abs(difference) < 0.05:
        return f"{line}, as much as the {before['name']}."
    return f"{line}, {abs(difference):.1f} {'more' if difference > 0 else 'less'} than the {before['name']}."
