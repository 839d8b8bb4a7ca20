"""A long sequence cut into blocks that see a few neighbours: O(r·n·d) in place of O(n²·d) (FIELD D9, L8)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Windows:
    """Queries at `start` … `end` in blocks that begin at multiples of `block`; keys from `begin` to `end`.

    A block sees the keys of the block before it, its own and those of `ahead` blocks after it, so every block
    is to its window what any other is: one mask and one bias by distance serve them all.
    """

    block: int
    ahead: int
    begin: int
    start: int
    end: int

    @property
    def first(self) -> int:
        """Where the first block begins."""
        return self.start // self.block * self.block

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return -(-(self.end - self.first) // self.block)

    @property
    def width(self) -> int:
        """How many keys a block sees."""
        return (2 + self.ahead) * self.block

    def places(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Of the queries of a block (block,) and of the keys in its window (width,), from the block's beginning."""
        return torch.arange(self.block, device=device), torch.arange(self.width, device=device) - self.block

    def queries(self, x: Tensor) -> Tensor:
        """(N, H, T, d) → (N·blocks, H, block, d)."""
        front = self.start - self.first
        x = F.pad(x, (0, 0, front, self.count * self.block - front - x.shape[2])).contiguous()
        return x.view(*x.shape[:2], self.count, self.block, -1).transpose(1, 2).flatten(0, 1)

    def keys(self, x: Tensor) -> Tensor:
        """(N, K, S, d) → (N·blocks, K, width, d)."""
        return F.pad(x, (0, 0, *self.margins)).unfold(2, self.width, self.block).permute(0, 2, 1, 4, 3).flatten(0, 1)

    def real(self, mask: Tensor) -> Tensor:
        """(B, S) → (B·blocks, 1, 1, width); what lies outside the sequence is not real."""
        return F.pad(mask, self.margins, value=False).unfold(1, self.width, self.block).flatten(0, 1)[:, None, None, :]

    def join(self, x: Tensor) -> Tensor:
        """(N·blocks, H, block, d) → (N, H, T, d)."""
        x = x.reshape(-1, self.count, *x.shape[1:]).transpose(1, 2).flatten(2, 3)
        return x[:, :, self.start - self.first : self.end - self.first]

    @property
    def margins(self) -> tuple[int, int]:
        """Keys to add before and after so that every window is whole; below zero, keys to leave out."""
        last = self.first + (self.count + self.ahead) * self.block
        return self.begin - (self.first - self.block), last - self.end
