"""A training loss that has left the ground: learning rates that are too high need not end in NaN."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path

LINES = 3  # of the log that must agree: a spike, or what training has recovered from, is nothing to warn of


class Divergence:
    """Compares the loss with that of the first step, which is the loss of weights that nothing has moved yet.

    Far above is more than twice as much and one more. The one (a nat a token) is for runs that start from trained
    weights: their first loss may be next to nothing, and scheduled sampling or other data may well double it.
    """

    def __init__(self, first: float | None = None) -> None:
        self.first = first  # None: not known; zero: of a batch that had nothing to learn from, which says as little
        self.newest: deque[float] = deque(maxlen=LINES)
        self.told = False

    def logged(self, step: int, loss: float) -> None:
        """A line of the log: the mean loss since the line before."""
        if step == 1:
            self.first = loss
        else:
            self.newest.append(loss)

    def warning(self, rate: float) -> str | None:
        """What is to be told at a validation, once; `rate` is the learning rate that was asked for."""
        if self.told or not self.first or not self.newest:
            return None
        if min(self.newest) <= self.first + abs(self.first) + 1:
            return None
        self.told = True
        return (
            f"training has diverged: the loss was {self.first:.4g} at the first step and is now {self.newest[-1]:.4g}; "
            f"start a new run with a lower train.optimizer.learning_rate (now {rate:g}) or a longer warmup"
        )


def first_loss(metrics: Path) -> float | None:
    """The loss of a run's first step, as metrics.jsonl tells it; None if it does not."""
    try:
        with metrics.open(encoding="utf-8") as file:
            row = json.loads(file.readline())
            return float(row["loss"]) if row["step"] == 1 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
