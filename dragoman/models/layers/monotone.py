"""The forward algorithm over latent source positions, for decoders that sum over all alignments exactly.

The latent variable is the source position at which a target token is written. Every token is written at one position;
between two tokens the position moves. Everything is a log-probability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

IMPOSSIBLE = -1e4  # log-probability of what cannot happen; finite, so that no gradient is NaN
PADDING = -1e8  # of a position that does not exist: even an impossible token leaves no weight there


class Written(NamedTuple):
    """Log-probabilities (N, S) of writing a token at each position i, and then to be at i or at i + 1."""

    stay: Tensor
    advance: Tensor | None = None  # None: never; impossible at the last position


class ForwardPass(NamedTuple):
    """What the forward algorithm computes."""

    weights: list[Tensor]  # before each token, (N, S): p(the position is visited | tokens before)
    evidence: list[Tensor]  # of each token that was written, (N,): log p(token | tokens before)


def last_position(mask: Tensor) -> Tensor:
    """True at the last real position of each row; mask (B, S)."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    return positions == (positions * mask).amax(1, keepdim=True)


def padding_bias(mask: Tensor) -> Tensor:
    """0 at real positions, PADDING elsewhere; mask (B, S)."""
    return torch.zeros(mask.shape, device=mask.device, dtype=torch.float32).masked_fill(~mask, PADDING)


def forward_bias(mask: Tensor, *, monotone: bool) -> Tensor:
    """Added to moves from i to j: 0 if j is real and, if monotone, not left of i; mask (B, S) → (B, S, S)."""
    size = mask.shape[1]
    allowed = torch.ones(size, size, dtype=torch.bool, device=mask.device)
    bias = torch.zeros(size, size, device=mask.device, dtype=torch.float32)
    bias = bias.masked_fill(~(allowed.triu() if monotone else allowed), PADDING)
    return bias.masked_fill(~mask[:, None], PADDING)


def write(weights: Tensor, written: Written) -> tuple[Tensor, Tensor]:
    """Condition weights (N, S) on the token that is written: normalised weights after it, and the evidence (N,)."""
    after = weights + written.stay
    if written.advance is not None:
        after = torch.logaddexp(after, F.pad((weights + written.advance)[:, :-1], (1, 0), value=PADDING))
    evidence = after.logsumexp(-1)
    return after - evidence[:, None], evidence


def forward_algorithm(
    after: Tensor,
    move: Callable[[Tensor, Sequence[Tensor]], Tensor],
    steps: Sequence[Sequence[Tensor]],
    written: Sequence[Written],
) -> ForwardPass:
    """Move, write, move, write, … from the normalised weights `after` (N, S) of the last token that was read.

    `move(after, step)` gives the weights before the next token. There are as many tokens as steps, or one less.
    """
    weights, evidence = [], []
    for t, step in enumerate(steps):
        weights.append(move(after, step))
        if t < len(written):
            after, total = write(weights[-1], written[t])
            evidence.append(total)
    return ForwardPass(weights, evidence)
