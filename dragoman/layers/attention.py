"""Attention: one place decides how scores are masked, and everything that attends goes through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.kernels import short_attention
from dragoman.kernels.cpu_attention import attend_small, suits
from dragoman.kernels.cpu_dropout import dropout as apply_dropout
from dragoman.layers.attention_scores import SCORES
from dragoman.layers.linear import Linear, glorot

Observer = Callable[[nn.Module, Tensor], None]
_observer: ContextVar[Observer | None] = ContextVar("attention_observer", default=None)


@contextmanager
def observe_attention(observer: Observer) -> Iterator[None]:
    """Show every attention weight computed inside the block to `observer(module, weights)`."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis where mask is True; a query with nothing to look at gets all zeros."""
    if mask is None:
        return scores.softmax(-1)
    # The smallest number rather than −∞: a row without a single real key must not turn gradients into NaN.
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) * mask


def watched() -> bool:
    """Whether somebody wants to see the weights: then every kind of attention must compute them all."""
    return not torch.compiler.is_compiling() and _observer.get() is not None


def show(module: nn.Module, weights: Tensor) -> None:
    """Give weights (N, H, T, S) to whoever observes."""
    if watched():
        observer = _observer.get()
        assert observer is not None
        observer(module, weights)


def attend(
    module: nn.Module,
    query: Tensor,  # (N, H, T, d); N = B, or B × hypotheses of one source
    key: Tensor,  # (B, K, S, d); K divides H, and H/K heads in a row share a key head
    value: Tensor,  # (B, K, S, d)
    *,
    mask: Tensor | None = None,  # True = real, broadcastable to (B, H, T, S)
    bias: Tensor | None = None,  # added to the scaled scores, broadcastable to (B, H, T, S)
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,  # 1/√d unless told
    dropped: int = 0,  # keys before these that can no longer be seen
) -> Tensor:
    """Scaled dot-product attention (FIELD D4), with the fused kernel unless somebody is watching.

    Several hypotheses of one source share its keys and values: their queries are laid side by side, so the
    memory is never repeated.
    """
    rows, heads, length, depth = query.shape
    hypotheses = rows // key.shape[0]
    if hypotheses > 1:
        query = query.view(-1, hypotheses, heads, length, depth).transpose(1, 2)
        # (B, H, k·T, d); of single tokens this is a view.
        query = query[:, :, :, 0] if length == 1 else query.reshape(-1, heads, hypotheses * length, depth)
        assert not causal
    groups = heads // key.shape[1]
    if causal and (bias is not None or watched()):
        mask, causal = torch.ones(length, key.shape[2], dtype=torch.bool, device=query.device).tril(), False
    if not watched() and bias is None and suits(query, key, value, dropout):
        out = attend_small(query, key, value, mask, causal, dropout, depth**-0.5 if scale is None else scale)
    elif not watched() and bias is None and short_attention.suits(query, key, mask):
        scale = depth**-0.5 if scale is None else scale
        out = short_attention.attend_short(query, key, value, mask, causal, dropout, scale)
    elif not watched():
        something = None
        if mask is not None:
            # A query with nothing to look at looks at everything and then reads zeros: of such a row cuDNN's bfloat16
            # kernel makes numbers in the output and NaN in the gradient (torch 2.11).
            something = mask.any(-1, keepdim=True)
            if mask.device.type == "cpu" and not torch.compiler.is_compiling() and bool(something.all()):
                something = None  # the usual case; asking a GPU would mean to wait for it
            else:
                mask = mask | ~something
        if bias is not None:
            bias = bias.to(query.dtype)
            mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, dropout_p=dropout, scale=scale, enable_gqa=groups > 1
        )
        out = out if something is None else out * something
    else:
        if groups > 1:
            key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
        scores = query @ key.transpose(-2, -1) * (depth**-0.5 if scale is None else scale)  # (B, H, k·T, S)
        weights = masked_softmax(scores if bias is None else scores + bias, mask)
        seen = weights
        if hypotheses > 1:
            seen = seen.view(-1, heads, hypotheses, length, key.shape[2]).transpose(1, 2).flatten(0, 1)
        show(module, F.pad(seen, (dropped, 0)))  # (N, H, T, S)
        out = apply_dropout(weights, dropout) @ value
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


Cache = tuple[Tensor, ...]  # of a layer; of softmax attention the keys and values so far, each (N, K, L, d)


class CrossAttention(nn.Module):
    """Multi-head attention over an encoder's memory (FIELD D8); keys and values are projected once."""

    is_cross_attention = True  # its weights are an alignment of target and source

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
    ) -> None:
        super().__init__()
        self.heads, self.key_heads, self.dropout = heads, key_heads or heads, dropout
        depth = width // heads
        self.query = Linear(width, width, bias=bias)
        self.key = Linear(memory_width, self.key_heads * depth, bias=bias)
        self.value = Linear(memory_width, self.key_heads * depth, bias=bias)
        self.output = Linear(width, width, bias=bias)
        self.score = SCORES[score](heads, depth)
        for linear in (self.query, self.key, self.value, self.output):
            glorot(linear)

    def read(self, keys: Tensor, values: Tensor) -> Cache:
        """The memory as this layer sees it, each (B, K, S, d)."""
        key, value = (split_heads(part, self.key_heads) for part in (self.key(keys), self.value(values)))
        return self.score.key(key), value

    def forward(self, x: Tensor, memory: Cache, mask: Tensor) -> Tensor:
        """(N, T, D) queries over the memory of their source; mask (B, S)."""
        out = attend(
            self,
            self.score.query(split_heads(self.query(x), self.heads)),
            *memory,
            mask=mask[:, None, None, :],
            dropout=self.dropout if self.training else 0.0,
            scale=self.score.scale,
        )
        joined: Tensor = self.output(join_heads(out))
        return joined
