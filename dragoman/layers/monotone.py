"""The forward algorithm over latent source positions, for decoders that sum over all alignments exactly.

The latent variable is the source position at which a target token is written. Every token is written at one position;
between two tokens the position moves. Everything is a log-probability.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

IMPOSSIBLE = -1e4  # log-probability of what cannot happen; finite, so that no gradient is NaN
PADDING = -1e8  # of a position that does not exist: even an impossible token leaves no weight there


def last_position(mask: Tensor) -> Tensor:
    """True at the last real position of each row; mask (B, S)."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    return positions == (positions * mask).amax(1, keepdim=True)


def deletions(delete: Tensor, mask: Tensor) -> Tensor:
    """Log-probability of moving from i to j by deleting the source tokens i … j − 1.

    delete (N, T, S): log-probability of deleting each; mask broadcastable to it, True = real → (N, T, S, S).
    """
    before = F.pad(delete.cumsum(-1)[..., :-1], (1, 0))  # (N, T, S) of all deletions left of a position
    between = before[..., None, :] - before[..., :, None]
    size = delete.shape[-1]
    forward = torch.ones(size, size, dtype=torch.bool, device=delete.device).triu()
    return between.masked_fill(~forward, IMPOSSIBLE).masked_fill(~mask[..., None, :], PADDING)


def forward_weights(weights: Tensor, moves: Tensor, stay: Tensor, advance: Tensor | None = None) -> Tensor:
    """Log-weight of each position before every token: p(position | tokens before it), times how often it is visited.

    weights (N, S): before the token that was read first; moves (N, T, S, S): from i to j after each token that was
    read; stay, advance (N, T, S): log-probability of writing that token at i and then to be at i, or at i + 1. The last
    position never advances.
    """
    steps = []
    for t in range(moves.shape[1]):
        entered = weights + stay[:, t]
        if advance is not None:
            entered = torch.logaddexp(entered, F.pad((weights + advance[:, t])[:, :-1], (1, 0), value=PADDING))
        entered = entered.log_softmax(-1)  # condition on the token that was read
        weights = (entered[:, :, None] + moves[:, t]).logsumexp(1)
        steps.append(weights)
    return torch.stack(steps, 1)
