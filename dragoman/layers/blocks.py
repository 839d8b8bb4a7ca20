"""Small blocks that several models share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.errors import DataError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


class FeedForward(nn.Module):
    """Two matrices with an activation between, at every position alike."""

    def __init__(self, width: int, inner: int, activation: str, dropout: float) -> None:
        super().__init__()
        self.widen = nn.Linear(width, inner)
        self.narrow = nn.Linear(inner, width)
        self.activation = ACTIVATIONS[activation]
        self.dropout = nn.Dropout(dropout)
        for linear in (self.widen, self.narrow):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        out: Tensor = self.narrow(self.dropout(self.activation(self.widen(x))))
        return out


class Residual(nn.Module):
    """x + f(norm(x)) in the pre-norm way, norm(x + f(x)) in the post-norm way of Vaswani 2017."""

    def __init__(self, width: int, norm: str, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.before = norm == "pre"
        self.dropout = nn.Dropout(dropout)

    def enter(self, x: Tensor) -> Tensor:
        """What the wrapped layer is given."""
        normed: Tensor = self.norm(x) if self.before else x
        return normed

    def leave(self, x: Tensor, out: Tensor) -> Tensor:
        """The stream after the wrapped layer gave `out`."""
        x = x + self.dropout(out)
        normed: Tensor = x if self.before else self.norm(x)
        return normed


class TokenEmbedding(nn.Module):
    """Token ids to vectors; the same table may serve source, target and output (FIELD F9).

    `space` is the id of the token that parts words, for those who read words out of characters; None: there is none.
    """

    def __init__(self, vocabulary: int, width: int, pad: int, space: int | None = None) -> None:
        super().__init__()
        self.width = width
        self.pad = pad
        self.space = space
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


def window(x: Tensor, mask: Tensor, maximum: int) -> tuple[Tensor, Tensor]:
    """At most `maximum` columns of x (B, S, D) and mask (B, S); an error if a row is longer than that."""
    if x.shape[1] > maximum:  # a shorter batch is never counted, which would wait for the GPU
        longest = int(mask.sum(1).max())
        if longest > maximum:
            raise DataError(
                f"a source of {longest} tokens (<eos> counts), but the model reads at most {maximum} "
                "(model.encoder's maximum); shorten it, or set data.max_length while training"
            )
    return x[:, :maximum], mask[:, :maximum]


def drop_words(
    tokens: Tensor, probability: float, unknown: int, keep_below: int, keep_from: int | None = None
) -> Tensor:
    """Replace a share of the tokens by <unk>, so that a model cannot lean on any single one."""
    if probability == 0.0:
        return tokens
    hit = torch.rand(tokens.shape, device=tokens.device) < probability
    hit &= tokens >= keep_below
    if keep_from is not None:
        hit &= tokens < keep_from
    return tokens.masked_fill(hit, unknown)
