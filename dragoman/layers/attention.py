"""Attention: one place decides how scores are masked, and everything that attends goes through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Observer = Callable[[nn.Module, Tensor], None]
_observer: ContextVar[Observer | None] = ContextVar("attention_observer", default=None)


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Show every attention weight computed inside the block to `observer(module, weights)`."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def show(module: nn.Module, weights: Callable[[], Tensor]) -> None:
    """Show weights (N, H, T, S) to whoever is watching."""
    observer = _observer.get()
    if observer is not None:
        observer(module, weights())


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis where mask is True; a query with nothing to look at gets all zeros."""
    if mask is None:
        return scores.softmax(-1)
    # The smallest number rather than −∞: a row without a single real key must not turn gradients into NaN.
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) * mask


def attend(
    module: nn.Module,
    query: Tensor,  # (N, H, T, d); N = B, or B × hypotheses of one source
    key: Tensor,  # (B, H, S, d)
    value: Tensor,  # (B, H, S, d)
    *,
    mask: Tensor | None = None,  # True = real, broadcastable to (B, H, T, S)
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Scaled dot-product attention (FIELD D4), with the fused kernel unless somebody is watching.

    Several hypotheses of one source share its keys and values: their queries are laid side by side, so the
    memory is never repeated.
    """
    rows, heads, length, depth = query.shape
    hypotheses = rows // key.shape[0]
    if hypotheses > 1:
        query = query.view(-1, hypotheses, heads, length, depth).transpose(1, 2)
        query = query.reshape(-1, heads, hypotheses * length, depth)  # (B, H, k·T, d)
        assert not causal
    observer = _observer.get()
    if observer is None:
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, dropout_p=dropout)
    else:
        if causal:
            mask = torch.ones(length, key.shape[2], dtype=torch.bool, device=query.device).tril()
        weights = masked_softmax(query @ key.transpose(-2, -1) / depth**0.5, mask)  # (B, H, k·T, S)
        seen = weights
        if hypotheses > 1:
            seen = seen.view(-1, heads, hypotheses, length, key.shape[2]).transpose(1, 2).flatten(0, 1)
        observer(module, seen)  # (N, H, T, S)
        out = F.dropout(weights, dropout) @ value
    if hypotheses > 1:
        out = out.view(-1, heads, hypotheses, length, depth).transpose(1, 2)
        out = out.reshape(rows, heads, length, depth)
    return out


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, D) → (B, H, T, d)."""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, H, T, d) → (B, T, D)."""
    return x.transpose(1, 2).flatten(2)


Cache = tuple[Tensor, Tensor]  # keys and values so far, each (N, H, L, d)


class SelfAttention(nn.Module):
    """Multi-head self-attention (FIELD D6), over a whole sequence or over a cache of what came before."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.project = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.project.weight, gain=2**-0.5)  # as three square matrices
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.project.bias)
        nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Every position looks at every real one; mask (B, S)."""
        query, key, value = (split_heads(part, self.heads) for part in self.project(x).chunk(3, -1))
        out = attend(
            self,
            query,
            key,
            value,
            mask=mask[:, None, None, :],
            dropout=self.dropout if self.training else 0.0,
        )
        joined: Tensor = self.output(join_heads(out))
        return joined

    def extend(self, x: Tensor, past: Cache, length: Tensor | int) -> tuple[Tensor, Cache]:
        """New positions look at the past and at themselves up to their own place.

        `length` as an int: the cache grows. As a tensor: the cache was made with room to spare, and the new
        keys are written into it in place at that position (the older state must not be used again).
        """
        query, key, value = (split_heads(part, self.heads) for part in self.project(x).chunk(3, -1))
        new, device = x.shape[1], x.device
        mask = None
        causal = False
        if isinstance(length, Tensor):
            places = length + torch.arange(new, device=device)
            key, value = (cache.index_copy_(2, places, part) for cache, part in zip(past, (key, value), strict=True))
            mask = torch.arange(key.shape[2], device=device) <= places[:, None]  # (T, C)
        elif length == 0:
            causal = new > 1
        else:
            key = torch.cat([past[0], key], 2)
            value = torch.cat([past[1], value], 2)
            if new > 1:
                places = length + torch.arange(new, device=device)
                mask = torch.arange(length + new, device=device) <= places[:, None]  # (T, L+T)
        out = attend(self, query, key, value, mask=mask, causal=causal, dropout=self.dropout if self.training else 0.0)
        return self.output(join_heads(out)), (key, value)

    def empty(self, rows: int, capacity: int | None, like: Tensor) -> Cache:
        """A cache with nothing in it: growing, or with room for `capacity` positions."""
        depth = self.output.in_features // self.heads
        return (
            like.new_zeros(rows, self.heads, capacity or 0, depth),
            like.new_zeros(rows, self.heads, capacity or 0, depth),
        )


class CrossAttention(nn.Module):
    """Multi-head attention over an encoder's memory (FIELD D8); keys and values are projected once."""

    reads_memory = True  # its weights are an alignment of target and source

    def __init__(self, width: int, heads: int, memory_width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(memory_width, width)
        self.value = nn.Linear(memory_width, width)
        self.output = nn.Linear(width, width)
        for linear in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def read(self, keys: Tensor, values: Tensor) -> Cache:
        """The memory as this layer sees it, each (B, H, S, d)."""
        return split_heads(self.key(keys), self.heads), split_heads(self.value(values), self.heads)

    def forward(self, x: Tensor, memory: Cache, mask: Tensor) -> Tensor:
        """(N, T, D) queries over the memory of their source; mask (B, S)."""
        out = attend(
            self,
            split_heads(self.query(x), self.heads),
            *memory,
            mask=mask[:, None, None, :],
            dropout=self.dropout if self.training else 0.0,
        )
        joined: Tensor = self.output(join_heads(out))
        return joined
