"""Detect a training loss that diverges without becoming NaN, usually from a learning rate that is too high."""

from __future__ import annotations

from collections import deque

WINDOW = 3  # log lines that must all be high: a spike, or a loss that has recovered, is no divergence


class DivergenceDetector:
    """Compares the logged loss with the loss of the first step, before any weight update.

    A loss has diverged if it is more than twice the first loss plus one. The one (a nat per token) is for runs that
    start from trained weights: their first loss may be almost zero, and other data may well double it.
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
