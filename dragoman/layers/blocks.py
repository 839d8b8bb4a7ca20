"""Small blocks that several models share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.errors import DataError
from dragoman.kernels.short_attention import HALF, has_triton
from dragoman.layers.dropout import Dropout
from dragoman.layers.linear import Linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),  # the approximation that T5 and GPT-2 were trained with
    "silu": F.silu,
}


def glorot(linear: nn.Linear, gain: float = 1.0) -> None:
    """Begin with weights after Glorot and Bengio 2010 and no bias."""
    nn.init.xavier_uniform_(linear.weight, gain)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


class FeedForward(nn.Module):
    """Two matrices with an activation between, at every position alike."""

    def __init__(self, width: int, inner: int, activation: str, dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.widen = Linear(width, inner, bias=bias)
        self.narrow = Linear(inner, width, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)
        for linear in (self.widen, self.narrow):
            glorot(linear)

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        out: Tensor = self.narrow(self.dropout(self.activation(self.widen(x))))
        return out


class GatedFeedForward(nn.Module):
    """The widened vector times an activated gate (Shazeer 2020): SwiGLU with silu, GEGLU with gelu."""

    def __init__(self, width: int, inner: int, activation: str, dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.gate = Linear(width, inner, bias=bias)
        self.widen = Linear(width, inner, bias=bias)
        self.narrow = Linear(inner, width, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)
        for linear in (self.gate, self.widen, self.narrow):
            glorot(linear)

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        out: Tensor = self.narrow(self.dropout(self.activation(self.gate(x)) * self.widen(x)))
        return out


def layer_norm(width: int, bias: bool = True) -> nn.Module:
    """Mean taken away, divided by the deviation (Ba et al. 2016)."""
    return nn.LayerNorm(width, bias=bias)


def rms_norm(width: int, bias: bool = True) -> nn.Module:
    """Divided by the root of the mean square (Zhang and Sennrich 2019); it never has a bias."""
    return nn.RMSNorm(width, eps=1e-6)  # as T5 and Llama; torch's own default depends on the number type


NORMS: dict[str, Callable[[int, bool], nn.Module]] = {"layer": layer_norm, "rms": rms_norm}


class Residual(nn.Module):
    """x + f(norm(x)) in the pre-norm way, norm(x + f(x)) in the post-norm way of Vaswani 2017."""

    def __init__(self, width: int, norm: str, dropout: float, kind: str = "layer", bias: bool = True) -> None:
        super().__init__()
        self.norm = NORMS[kind](width, bias)
        self.before = norm == "pre"
        self.dropout = Dropout(dropout)

    def enter(self, x: Tensor) -> Tensor:
        """What the wrapped layer is given."""
        normed: Tensor = self.norm(x) if self.before else x
        return normed

    def leave(self, x: Tensor, out: Tensor) -> Tensor:
        """The stream after the wrapped layer gave `out`."""
        x = x + self.dropout(out)
        normed: Tensor = x if self.before else self.norm(x)
        return normed

    def join(self, x: Tensor, out: Tensor, following: Residual) -> tuple[Tensor, Tensor]:
        """The stream after the wrapped layer gave `out`, and what the following one is given."""
        norm = following.norm if self.before else self.norm
        if joins(norm, x, out) and not self.training:
            from dragoman.kernels import add_norm_triton as norm_kernels

            total, normed = norm_kernels.add_norm(x, out, norm.weight, norm.bias, norm.eps)
            return (total, normed) if self.before else (normed, normed)
        x = self.leave(x, out)
        return x, following.enter(x)


def joins(norm: nn.Module, x: Tensor, out: Tensor) -> TypeGuard[nn.LayerNorm]:
    """Whether a sum and its norm are made in one go: where a GPU decodes in half precision."""
    return (
        type(norm) is nn.LayerNorm
        and x.is_cuda
        and x.dtype == out.dtype == norm.weight.dtype
        and x.dtype in HALF
        and not torch.is_grad_enabled()
        and has_triton()
    )


class TokenEmbedding(nn.Module):
    """Token ids to vectors; the same table may serve source, target and output (FIELD F9).

    `space` is the id of the token that parts words, for those who read words out of characters; None: there is none.
    """

    def __init__(self, vocabulary: int, width: int, pad: int, space: int | None = None) -> None:
        super().__init__()
        self.width = width
        self.pad = pad
        self.space = space
        self.first_tag: int | None = None  # ids from here on are tags (FIELD G10), where there are any
        self.folded: Tensor | None
        self.register_buffer("folded", None, persistent=False)  # (V,) each token in lower case, where somebody asks
        self.weight = nn.Parameter(torch.randn(vocabulary, width) * width**-0.5)
        nn.init.zeros_(self.weight.data[pad])

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) → (B, T, D)."""
        return F.embedding(tokens, self.weight, padding_idx=self.pad)


class OneHot(nn.Module):
    """Token ids to unit vectors, as long as the vocabulary; padding is zero. Nothing to learn."""

    like: Tensor  # tells the precision the model is in

    def __init__(self, vocabulary: int, pad: int) -> None:
        super().__init__()
        self.width = vocabulary
        self.pad = pad
        self.register_buffer("like", torch.zeros(()), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) → (B, T, V)."""
        return (F.one_hot(tokens, self.width) * (tokens != self.pad)[..., None]).to(self.like.dtype)


Embedding = TokenEmbedding | OneHot


def build_embedding(vocabulary: int, width: int, pad: int, space: int | None = None) -> Embedding:
    """A table of vectors of this width; width 0: one-hot vectors."""
    return TokenEmbedding(vocabulary, width, pad, space) if width else OneHot(vocabulary, pad)


class FirstRows(nn.Linear):
    """A linear layer on the first rows of a table that it shares with others and that has more of them."""

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, V), V ≤ the rows of the table."""
        return F.linear(x, self.weight[: self.out_features], self.bias)


def mean_over(x: Tensor, mask: Tensor) -> Tensor:
    """The mean of the real positions: x (B, S, D), mask (B, S) → (B, D)."""
    real = mask[:, :, None].to(x.dtype)
    return (x * real).sum(1) / real.sum(1).clamp(min=1)


def window(x: Tensor, mask: Tensor, max_positions: int) -> tuple[Tensor, Tensor]:
    """At most `max_positions` columns of x (B, S, …) and mask (B, S); an error if a row is longer than that."""
    if x.shape[1] > max_positions:  # a shorter batch is never counted, which would wait for the GPU
        longest = int(mask.sum(1).max())
        if longest > max_positions:
            raise DataError(
                f"a source of {longest} tokens (<eos> counts), but the model reads at most {max_positions} "
                "(model.encoder's max_positions); shorten it, or set data.max_length while training"
            )
    return x[:, :max_positions], mask[:, :max_positions]


def drop_words(
    tokens: Tensor,
    probability: float,
    unknown: int,
    keep_below: int,
    keep_from: int | None = None,
    keep: int | None = None,
) -> Tensor:
    """Replace a share of the tokens by <unk>, so that a model cannot lean on any single one."""
    if probability == 0.0:
        return tokens
    hit = torch.rand(tokens.shape, device=tokens.device) < probability
    hit &= tokens >= keep_below
    if keep_from is not None:
        hit &= tokens < keep_from
    if keep is not None:
        hit &= tokens != keep
    return tokens.masked_fill(hit, unknown)
