"""A long sequence split into blocks that see a few neighbours: O(r·n·d) instead of O(n²·d)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Windows:
    """Queries at `start` … `end` in blocks that begin at multiples of `block`; keys from `cache_start` to `end`.

    A block sees the keys of the block before it, its own and those of `ahead` blocks after it. All blocks relate to
    their windows in the same way, so one mask and one bias by distance serve all of them.
    """

    block: int
    ahead: int
    cache_start: int
    start: int
    end: int

    @property
    def first(self) -> int:
        """The position where the first block begins."""
        return self.start // self.block * self.block

    @property
    def count(self) -> int:
        return -(-(self.end - self.first) // self.block)

    @property
    def width(self) -> int:
        return (2 + self.ahead) * self.block

    def positions(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Positions of queries (block,) and keys (width,), counted from the beginning of their block."""
        return torch.arange(self.block, device=device), torch.arange(self.width, device=device) - self.block

    def queries(self, x: Tensor) -> Tensor:
        """(N, H, T, d) → (N·blocks, H, block, d)."""
        front = self.start - self.first
        x = F.pad(x, (0, 0, front, self.count * self.block - front - x.shape[2])).contiguous()
        return x.view(*x.shape[:2], self.count, self.block, -1).transpose(1, 2).flatten(0, 1)

    def keys(self, x: Tensor) -> Tensor:
        """(N, K, S, d) → (N·blocks, K, width, d)."""
        return F.pad(x, (0, 0, *self.margins)).unfold(2, self.width, self.block).permute(0, 2, 1, 4, 3).flatten(0, 1)

    def mask(self, mask: Tensor) -> Tensor:
        """(B, S) → (B·blocks, 1, 1, width); False outside the sequence."""
        return F.pad(mask, self.margins, value=False).unfold(1, self.width, self.block).flatten(0, 1)[:, None, None, :]

    def join(self, x: Tensor) -> Tensor:
        """(N·blocks, H, block, d) → (N, H, T, d)."""
        x = x.reshape(-1, self.count, *x.shape[1:]).transpose(1, 2).flatten(2, 3)
        return x[:, :, self.start - self.first : self.end - self.first]

    @property
    def margins(self) -> tuple[int, int]:
        """Keys to add before and after, so that every window is complete; negative: keys to leave out."""
        last = self.first + (self.count + self.ahead) * self.block
        return self.cache_start - (self.first - self.block), last - self.end
