"""Scaled dot-product attention, its observers, and the cross-attention of the Transformer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.models.kernels import fused_layers
from dragoman.models.kernels.attention import attention
from dragoman.models.kernels.cpu_dropout import dropout as apply_dropout
from dragoman.models.kernels.support import is_exporting
from dragoman.models.layers.linear import Linear, glorot

T = TypeVar("T")


class ScaledDot(nn.Module):
    """q·k / √d (Vaswani et al. 2017, eq. 1)."""

    def __init__(self, heads: int, depth: int) -> None:
        super().__init__()
        self.scale = depth**-0.5  # factor of the product

    def query(self, x: Tensor) -> Tensor:
        """Queries (N, H, T, d) as they enter the product."""
        return x

    def key(self, x: Tensor) -> Tensor:
        """Keys (N, H, S, d) as they enter the product."""
        return x


class Dot(ScaledDot):
    """q·k, as in T5."""

    def __init__(self, heads: int, depth: int) -> None:
        super().__init__(heads, 1)


class Cosine(Dot):
    """The cosine of q and k divided by a learned temperature per head (Liu et al. 2022, Swin v2)."""

    def __init__(self, heads: int, depth: int) -> None:
        super().__init__(heads, depth)
        # A logarithm, so that it stays positive; the initial temperature is 0.1.
        self.sharpness = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))

    def query(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * self.sharpness.exp()

    def key(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


SCORES: dict[str, type[ScaledDot]] = {"scaled-dot": ScaledDot, "dot": Dot, "cosine": Cosine}


Observer = Callable[[nn.Module, Tensor], None]
_observer: ContextVar[Observer | None] = ContextVar("attention_observer", default=None)


class Products(NamedTuple):
    """What the weights of one attention are computed from; key heads are repeated for the heads that share them."""

    query: Tensor  # (N, H, T, d)
    key: Tensor  # (N, H, S, d)
    value: Tensor  # (N, H, S, d)
    scale: float
    bias: Tensor | None  # added to the scaled scores, broadcastable to (N, H, T, S)
    mask: Tensor | None  # True = visible, broadcastable to (N, H, T, S)


_watcher: ContextVar[Callable[[nn.Module, Products], None] | None] = ContextVar("product_watcher", default=None)


@contextmanager
def watch_products(watcher: Callable[[nn.Module, Products], None]) -> Iterator[None]:
    """Call `watcher(module, products)` for all scaled dot-product attention that an observer sees in the block."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def observe_attention(observer: Observer) -> Iterator[None]:
    """Call `observer(module, weights)` with all attention weights computed inside the block."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis where mask is True; zeros where it is nowhere True."""
    if mask is None:
        return scores.softmax(-1)
    # The smallest number instead of −∞: a row without any visible key must not turn gradients into NaN.
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) * mask


def observed() -> bool:
    """Whether there is an observer: then every kind of attention must compute all weights."""
    return (not torch.compiler.is_compiling() or is_exporting()) and _observer.get() is not None


def alignment_layer(layers: Sequence[T]) -> T:
    """The layer that is read as an alignment: the last; of three or more the last but one, where deep Transformers
    align best (Garg et al. 2019)."""
    return layers[-2] if len(layers) > 2 else layers[-1]


def show(module: nn.Module, weights: Tensor) -> None:
    """Pass weights (N, H, T, S) to the observer, if there is one."""
    if observed():
        observer = _observer.get()
        assert observer is not None
        observer(module, weights)


def attend(
    module: nn.Module,
    query: Tensor,  # (N, H, T, d); N = B, or B × hypotheses of one source
    key: Tensor,  # (B, K, S, d); K divides H, and H/K heads in a row share a key head
    value: Tensor,  # (B, K, S, d)
    *,
    mask: Tensor | None = None,  # True = visible, broadcastable to (B, H, T, S)
    bias: Tensor | None = None,  # added to the scaled scores, broadcastable to (B, H, T, S)
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,  # 1/√d by default
    dropped: int = 0,  # earlier keys that are no longer in the cache
) -> Tensor:
    """Scaled dot-product attention (Vaswani et al. 2017, eq. 1), by a fused kernel unless someone observes the weights.

    The hypotheses of a source share its keys and values: their queries are concatenated along T, so that the memory is
    never repeated.
    """
    rows, heads, length, depth = query.shape
    hypotheses = rows // key.shape[0]
    if hypotheses > 1:
        assert not causal
        query = query.view(-1, hypotheses, heads, length, depth).transpose(1, 2)
        # (B, H, k·T, d); a view for single tokens
        query = query[:, :, :, 0] if length == 1 else query.reshape(-1, heads, hypotheses * length, depth)
        if bias is not None and bias.shape[0] == rows:  # a bias of each query moves with it
            bias = bias.view(-1, hypotheses, heads, length, key.shape[2]).transpose(1, 2).flatten(2, 3)
    if causal and observed():
        mask, causal = torch.ones(length, key.shape[2], dtype=torch.bool, device=query.device).tril(), False
    if observed():
        out, weights = plain_attention(query, key, value, mask, bias, dropout, scale)
        if watcher := _watcher.get():
            shared = query.shape[1] // key.shape[1]
            keys, values = (tensor.repeat_interleave(shared, 1) for tensor in (key, value))
            watcher(module, Products(query, keys, values, depth**-0.5 if scale is None else scale, bias, mask))
        if hypotheses > 1:
            weights = weights.view(-1, heads, hypotheses, length, key.shape[2]).transpose(1, 2).flatten(0, 1)
        show(module, F.pad(weights, (dropped, 0)))  # (N, H, T, S)
    else:
        out = attention(query, key, value, mask, bias, causal, dropout, scale)
    if hypotheses > 1:
        out = out.view(-1, heads, hypotheses, length, depth).transpose(1, 2).reshape(rows, heads, length, depth)
    return out


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    dropout: float,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """Attention operation by operation: output (B, H, T, d) and weights (B, H, T, S)."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (tensor.repeat_interleave(groups, 1) for tensor in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[3] ** -0.5 if scale is None else scale)
    weights = masked_softmax(scores if bias is None else scores + bias, mask)
    return apply_dropout(weights, dropout) @ value, weights


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, D) → (B, H, T, d)."""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, H, T, d) → (B, T, D)."""
    return x.transpose(1, 2).flatten(2)


Cache = tuple[Tensor, ...]  # of one layer; of softmax attention the keys and values so far, each (N, K, L, d)


class CrossAttention(nn.Module):
    """Multi-head attention over the memory of an encoder; keys and values are projected once."""

    is_cross_attention = True  # its weights align target and source

    def __init__(
        self,
        width: int,
        heads: int,
        memory_width: int,
        dropout: float = 0.0,
        *,
        key_heads: int = 0,
        score: str = "scaled-dot",
        bias: bool = True,
        head_width: int = 0,  # 0: width / heads
    ) -> None:
        super().__init__()
        self.heads, self.key_heads, self.dropout = heads, key_heads or heads, dropout
        depth = head_width or width // heads
        self.query = Linear(width, heads * depth, bias=bias)
        self.key = Linear(memory_width, self.key_heads * depth, bias=bias)
        self.value = Linear(memory_width, self.key_heads * depth, bias=bias)
        self.output = Linear(heads * depth, width, bias=bias)
        self.score = SCORES[score](heads, depth)
        for linear in (self.query, self.key, self.value, self.output):
            glorot(linear)

    def read(self, keys: Tensor, values: Tensor) -> Cache:
        """The projected keys and values, each (B, K, S, d)."""
        return self.split_memory(self.key(keys), self.value(values))

    def split_memory(self, key: Tensor, value: Tensor) -> Cache:
        """Projected keys and values (B, S, K·d) by heads."""
        return self.score.key(split_heads(key, self.key_heads)), split_heads(value, self.key_heads)

    def forward(self, x: Tensor, memory: Cache, mask: Tensor) -> Tensor:
        """Queries (N, T, D) over the memory of their source as `read` returns it; mask (B, S)."""
        out = attend(
            self,
            self.score.query(split_heads(self.query(x), self.heads)),
            *memory,
            mask=mask[:, None, None, :],
            dropout=self.dropout if self.training else 0.0,
            scale=self.score.scale,
        )
        return self.output(join_heads(out))


def read_memory(attentions: Sequence[CrossAttention], keys: Tensor, values: Tensor) -> tuple[Cache, ...]:
    """What each attention reads of one memory; in training on a GPU by one matrix product for all of them."""
    layers = [layer for attention in attentions for layer in (attention.key, attention.value)]
    if keys is not values or not fused_layers.fuses_linear(keys) or any(type(layer) is not Linear for layer in layers):
        return tuple(attention.read(keys, values) for attention in attentions)
    projected = fused_layers.linear(keys, *layers)
    parts = torch.split(projected, [layer.out_features for layer in layers], -1)
    pairs = zip(attentions, parts[::2], parts[1::2], strict=True)
    return tuple(attention.split_memory(key, value) for attention, key, value in pairs)
