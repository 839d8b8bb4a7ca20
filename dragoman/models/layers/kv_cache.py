"""Key-value caches of self-attention: growing, of a fixed capacity, shared by the hypotheses of a source, or none.

A cache is a tuple of tensors with one row per hypothesis, so that `State` selects and reorders it like any other part.
`update` adds the keys and values of new positions and returns what the queries of these positions attend to.

`GrowingCache` never writes in place: a state stays valid after the calls that continue it, as speculative decoding and
back-propagation need. `FixedCache` and `SharedCache` do, so that the addresses and shapes of a captured or exported
step never change. That is safe because a caller gets them only by asking `Decoder.start` for a capacity, keeps one
state and continues it once: a position is written once, by the step that reaches it, and no mask shows a position
before it is written. The state before such a step shares its tensors and must not be used again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.models.kernels import short_attention


class Seen(NamedTuple):
    """What new positions attend to."""

    keys: Tensor  # (N, K, S, d), or (B, K, S, d) where hypotheses share them
    values: Tensor
    cache: Any  # the cache for the next call
    visible: Tensor | None = None  # (B, 1, k, S) the keys that a hypothesis may see; None: all that are not later
    hypotheses: int = 1  # keys per position


class NoCache(NamedTuple):
    """For one call that nothing comes before or after, such as teacher forcing: no key or value is kept."""

    def update(self, key: Tensor, value: Tensor, positions: Tensor) -> Seen:
        """Add keys and values (N, K, T, d) of new positions (T,)."""
        return Seen(key, value, self)

    def drop(self, count: int) -> NoCache:
        return self


class GrowingCache(NamedTuple):
    """As long as the positions that can still be seen."""

    keys: Tensor  # (N, K, L, d)
    values: Tensor

    def update(self, key: Tensor, value: Tensor, positions: Tensor) -> Seen:
        if self.keys.shape[2]:
            key, value = torch.cat([self.keys, key], 2), torch.cat([self.values, value], 2)
        return Seen(key, value, GrowingCache(key, value))

    def drop(self, count: int) -> GrowingCache:
        """Forget the first positions, which no later one sees; a cache in fixed memory keeps all."""
        return GrowingCache(self.keys[:, :, count:], self.values[:, :, count:])


class FixedCache(NamedTuple):
    """Room for C positions, written in place."""

    keys: Tensor  # (N, K, C, d)
    values: Tensor

    def update(self, key: Tensor, value: Tensor, positions: Tensor) -> Seen:
        keys = self.keys.index_copy_(2, positions, key)
        return Seen(keys, self.values.index_copy_(2, positions, value), self)


class SharedEntries(NamedTuple):
    """Which entries of a `SharedCache` belong to the prefixes of hypotheses: one table for all layers."""

    visible: Tensor  # (N, C·k) those of each hypothesis, its newest included
    listed: Tensor  # (B, C·k) for kernels: the earlier entries that any hypothesis of a source sees …
    counts: Tensor  # (B,) … and how many they are

    @staticmethod
    def empty(sources: int, hypotheses: int, capacity: int, device: torch.device) -> SharedEntries:
        size = hypotheses * capacity
        visible = torch.zeros(sources * hypotheses, size, dtype=torch.bool, device=device)
        listed = torch.zeros(sources, size, dtype=torch.int32, device=device)
        return SharedEntries(visible, listed, torch.zeros(sources, dtype=torch.int32, device=device))

    def advance(self, parents: Tensor, length: Tensor) -> None:
        """Hypotheses continue their parents (N,), and each sees the new entry that it writes at position `length`."""
        if short_attention.advances(self.visible):
            short_attention.advance(*self, parents, length)
            return
        rows, width = len(self.visible), len(self.visible) // len(self.counts)
        self.visible.copy_(self.visible.index_select(0, parents))
        new = length * width + torch.arange(rows, device=parents.device) % width
        self.visible.scatter_(1, new[:, None], True)


class SharedCache(NamedTuple):
    """One cache for the k hypotheses of a source, written in place; nothing moves when a beam search reorders them."""

    keys: Tensor  # (B, K, C·k, d): for each of C positions one entry per hypothesis
    values: Tensor
    entries: SharedEntries

    @staticmethod
    def like(cache: FixedCache | SharedCache, entries: SharedEntries) -> SharedCache:
        """An empty cache with this table for sources of this cache."""
        size = entries.visible.shape[1]
        keys, values = (part.new_zeros(*part.shape[:2], size, part.shape[3]) for part in (cache.keys, cache.values))
        return SharedCache(keys, values, entries)

    def update(self, key: Tensor, value: Tensor, positions: Tensor) -> Seen:
        """Add one position of every hypothesis."""
        sources = self.keys.shape[0]
        hypotheses = key.shape[0] // sources
        entries = positions * hypotheses + torch.arange(hypotheses, device=positions.device)
        for cache, new in ((self.keys, key), (self.values, value)):
            cache.index_copy_(2, entries, new.view(sources, hypotheses, *new.shape[1:])[:, :, :, 0].transpose(1, 2))
        visible = self.entries.visible.view(sources, 1, hypotheses, -1)
        return Seen(self.keys, self.values, self, visible, hypotheses)
