"""GNMT's coverage penalty (Wu et al. 2016, eq. 14): what of the source nobody looked at costs a hypothesis."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.decoding.hypothesis import Step
from dragoman.errors import ConfigError
from dragoman.layers.attention import observing

LEAST = 1e-6  # log 0 would leave nothing to compare


class Coverage:
    """How much attention each entry of the source got from every hypothesis, by the last layer that reads it."""

    def __init__(self, step: Step, penalty: float, mask: Tensor) -> None:
        self._step = step
        self.penalty = penalty
        self.mask = mask  # (B, S), True = real
        self.read: Tensor | None = None  # (B, k, S) before the last step
        self.seen: Tensor  # (B, k, S) in the last step

    def step(self, tokens: Tensor, state: object) -> tuple[Tensor, object]:
        """A model's step, watched."""
        found: list[Tensor] = []

        def keep(module: nn.Module, weights: Tensor) -> None:
            if getattr(module, "reads_memory", False):
                found.append(weights)

        with observing(keep):
            out = self._step(tokens, state)
        if not found:
            raise ConfigError("coverage_penalty: this model's output does not look at its source by attention; leave 0")
        entries = found[-1].shape[-1]
        if entries != self.mask.shape[1]:
            raise ConfigError(
                f"coverage_penalty: found {entries} entries in the memory of {self.mask.shape[1]} tokens, expected one "
                "for each token; leave 0 with this encoder"
            )
        # Hypotheses stand in rows or side by side in their source's row: either way their order is the same.
        self.seen = found[-1].mean(1).reshape(len(self.mask), -1, entries)
        return out

    def costs(self, origin: Tensor) -> Tensor:
        """β Σ log min(Σ weights, 1) of the hypotheses that continuations (B, C) come from."""
        total = self.seen if self.read is None else self.read + self.seen
        logs = total.clamp(LEAST, 1.0).log().masked_fill(~self.mask[:, None], 0.0)
        return (self.penalty * logs.sum(2)).gather(1, origin)

    def advance(self, origin: Tensor) -> None:
        """Follow the hypotheses that live on, (B, k)."""
        total = self.seen if self.read is None else self.read + self.seen
        self.read = total.gather(1, origin[:, :, None].expand(-1, -1, total.shape[2]))

    def select(self, sources: Tensor) -> None:
        """Keep or repeat some sources."""
        self.mask = self.mask.index_select(0, sources)
        if self.read is not None:
            self.read = self.read.index_select(0, sources)


def repeated(tokens: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Which tokens would write an n-gram of this size again: tokens (B, k, t) → places and tokens (B, k, t − n + 1)."""
    grams = tokens.unfold(2, size, 1)  # (B, k, t − n + 1, n)
    begun = tokens[:, :, tokens.shape[2] - size + 1 :]
    return (grams[..., :-1] == begun[:, :, None]).all(3), grams[..., -1]


def without_repeats(options: Tensor, tokens: Tensor, size: int) -> Tensor:
    """Options (B, k, V) with −∞ for what would write an n-gram twice; <eos> comes once and is never one."""
    if tokens.shape[2] < size:
        return options
    again, token = repeated(tokens, size)
    barred = torch.zeros_like(options, dtype=torch.int32).scatter_add_(2, token, again.int()) > 0
    return options.masked_fill(barred, float("-inf"))
