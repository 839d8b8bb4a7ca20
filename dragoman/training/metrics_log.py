"""The metrics of a run: one JSON object a line in metrics.jsonl; a warning if they diverge."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman.base import append_text, write_text
from dragoman.training.checkpoints import TrainingState
from dragoman.training.trackers import OnMetrics

WINDOW = 3  # log lines that must all be high: a spike, or a loss that has recovered, is no divergence


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; lines that are not rows are left out, such as half a line of a killed process."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            if is_row(row):
                rows.append(row)
    return rows


def is_row(row: Any) -> bool:
    """Whether a JSON value is a row as the trainer writes it."""
    if not isinstance(row, dict) or "step" not in row:
        return False
    if any(type(row.get(name, 0)) is not int for name in ("step", "epoch", "tokens")):
        return False
    scores = row.get("valid", {name: row.get(name) for name in ("loss", "tokens_per_second")})
    if not isinstance(scores, dict) or not scores:
        return False
    return all(type(value) in (int, float) for value in (row.get("seconds"), *scores.values()))


def named_values(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row as callbacks and trackers get them: train/loss, valid/bleu, general/loss."""
    parts = {part: row[part] for part in ("valid", "general") if part in row} or {"train": row}
    return {
        f"{part}/{name}": value
        for part, values in parts.items()
        for name, value in values.items()
        if isinstance(value, int | float) and name != "step"
    }


class MetricsLog:
    """Appends the training and validation metrics of a run to metrics.jsonl."""

    def __init__(self, run: Path) -> None:
        self.path = run / "metrics.jsonl"
        self.on_metrics: OnMetrics | None = None  # gets every row, too

    def restore(self, state: TrainingState) -> None:
        """Remove what is logged of later steps than a restored checkpoint: they will be trained again."""
        if self.path.exists():
            rows = read_rows(self.path)
            kept = [row for row in rows if row["step"] <= (state.validated_step if "valid" in row else state.step)]
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))

    def append(self, row: dict[str, Any]) -> None:
        """Add one row. A row of a validation holds its scores under the key "valid"."""
        append_text(self.path, json.dumps(row) + "\n")
        if self.on_metrics is not None:
            self.on_metrics(row["step"], named_values(row))

    def first_loss(self) -> float | None:
        """The loss of step 1; None if the log does not hold it."""
        return next((row.get("loss") for row in read_rows(self.path)[:1] if row["step"] == 1), None)


class DivergenceDetector:
    """Detects a training loss that diverges without becoming NaN, usually from a learning rate that is too high.

    A loss has diverged if it is more than twice the loss of the first step, before any weight update, plus one. The one
    (a nat per token) is for runs that start from trained weights: their first loss may be almost zero, and other data
    may well double it.
    """

    def __init__(self, first_loss: float | None = None) -> None:
        self.first_loss = first_loss  # None or zero: unknown, nothing to compare with
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.has_warned = False

    def add(self, step: int, loss: float) -> None:
        """Add a logged loss: the mean since the log line before."""
        if step == 1:
            self.first_loss = loss
        else:
            self.recent.append(loss)

    def warning(self, learning_rate: float) -> str | None:
        """A warning if training has diverged; it is given once."""
        if self.has_warned or not self.first_loss or not self.recent:
            return None
        if min(self.recent) <= self.first_loss + abs(self.first_loss) + 1:
            return None
        self.has_warned = True
        return (
            f"training has diverged: the loss was {self.first_loss:.4g} at the first step and is now "
            f"{self.recent[-1]:.4g}; start a new run with a lower train.optimizer.learning_rate "
            f"(now {learning_rate:g}) or a longer warmup"
        )
