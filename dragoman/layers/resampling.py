"""Change the length of sequences: upsampling and interpolation."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Upsample(nn.Module):
    """Splits every vector into `factor` vectors, each by its own matrix (Libovický and Helcl 2018, section 3)."""

    def __init__(self, inputs: int, width: int, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.split = nn.Linear(inputs, factor * width)
        for matrix in self.split.weight.data.chunk(factor):
            nn.init.xavier_uniform_(matrix)
        nn.init.zeros_(self.split.bias)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, I) and mask (B, S) → (B, factor·S, D) and its mask."""
        rows, length, _ = x.shape
        return self.split(x).view(rows, self.factor * length, -1), mask.repeat_interleave(self.factor, 1)


def resize(x: Tensor, lengths: Tensor, sizes: Tensor, longest: int) -> Tensor:
    """Interpolate the first `lengths[b]` vectors of every row linearly to `sizes[b]`.

    (B, S, D) → (B, longest, D). The ends are aligned as when an image is scaled. Beyond its size a row repeats its last
    vector.
    """
    positions = torch.arange(longest, device=x.device) + 0.5
    positions = positions * (lengths / sizes.clamp(min=1))[:, None] - 0.5  # (B, longest)
    last = (lengths - 1).clamp(min=0)[:, None]
    positions = positions.clamp(min=0.0).minimum(last.to(positions.dtype))
    left = positions.floor().long()
    right = (left + 1).minimum(last)
    share = (positions - left)[:, :, None].to(x.dtype)

    def at(index: Tensor) -> Tensor:
        return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[2]))

    return at(left) * (1 - share) + at(right) * share
