"""Many states to one vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.layers.attention import masked_softmax, show


class TimeAttention(nn.Module):
    """Σ_t a_t h_t with a = softmax(tanh(h_t·w + b_t)) over a fixed number of steps (FIELD D11, M)."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(steps))

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """states (B, T, D), mask (B, T) → (B, D)."""
        scores = torch.tanh(states @ self.weight + self.bias)  # (B, T)
        weights = masked_softmax(scores, mask)
        show(self, weights[:, None, None])
        return (weights[:, :, None] * states).sum(1)
