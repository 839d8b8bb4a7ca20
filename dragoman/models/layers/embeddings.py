"""Token embeddings, one-hot vectors and word dropout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.data.tokenizers import SPECIALS, UNK
from dragoman.models.kernels.fused_layers import token_ids

Side = Literal["source", "target"]


class TokenEmbedding(nn.Module):
    """Token embeddings; source, target and output may share one table.

    `space` is the id of the token between words, for encoders that build words from characters; None: there is none.
    `sides` says whose tokens the rows are; analyses and files of word vectors find the tables of a model by it.
    """

    sides: tuple[Side, ...] = ("target",)

    def __init__(self, vocabulary: int, width: int, pad: int, space: int | None = None) -> None:
        super().__init__()
        self.width = width
        self.pad = pad
        self.space = space
        self.first_tag: int | None = None  # ids from here on are tags, if there are any
        self.folded: Tensor | None
        self.register_buffer("folded", None, persistent=False)  # (V,) the lower-case id of every token, if set
        self.weight = nn.Parameter(torch.randn(vocabulary, width) * width**-0.5)
        nn.init.zeros_(self.weight.data[pad])

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) → (B, T, D)."""
        return F.embedding(token_ids(tokens, self.weight), self.weight, padding_idx=self.pad)


class OneHot(nn.Module):
    """One-hot vectors of the size of the vocabulary; zeros for padding. Nothing is learned."""

    like: Tensor  # has the data type of the model

    def __init__(self, vocabulary: int, pad: int) -> None:
        super().__init__()
        self.width = vocabulary
        self.pad = pad
        self.register_buffer("like", torch.zeros(()), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) → (B, T, V)."""
        return (F.one_hot(tokens, self.width) * (tokens != self.pad)[..., None]).to(self.like.dtype)


Embedding = TokenEmbedding | OneHot


def build_embedding(
    vocabulary: int,
    width: int,
    pad: int,
    space: int | None = None,
    tags: int = 0,
    sides: tuple[Side, ...] = ("target",),
) -> Embedding:
    """A table of vectors of this width; width 0: one-hot vectors. The last `tags` tokens are language tags."""
    if not width:
        return OneHot(vocabulary, pad)
    embedding = TokenEmbedding(vocabulary, width, pad, space)
    embedding.sides = sides
    if tags:
        embedding.first_tag = vocabulary - tags
    return embedding


def token_tables(model: nn.Module) -> Iterator[tuple[str, tuple[Side, ...], nn.Parameter]]:
    """Name, sides and vectors (V, D) of every module that declares `sides`; a shared table once."""
    seen: set[int] = set()
    for name, module in model.named_modules():
        sides, weight = getattr(module, "sides", ()), getattr(module, "weight", None)
        if sides and isinstance(weight, nn.Parameter) and id(weight) not in seen:
            seen.add(id(weight))
            yield name, sides, weight


class WordDropout(nn.Module):
    """Replaces a share of the tokens by <unk> in training, so that a model does not rely on any single one.

    Special tokens, ids from `keep_from` on (tags) and the token `keep` (the space) stay.
    """

    def __init__(self, share: float, keep_from: int | None = None, keep: int | None = None) -> None:
        super().__init__()
        self.share, self.keep_from, self.keep = share, keep_from, keep

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) → (B, T)."""
        return self.hide(tokens, self.share) if self.training and self.share else tokens

    def hide(self, tokens: Tensor, share: float) -> Tensor:
        """The tokens (B, T) with so large a share of them replaced."""
        hit = (torch.rand(tokens.shape, device=tokens.device) < share) & (tokens >= len(SPECIALS))
        if self.keep_from is not None:
            hit &= tokens < self.keep_from
        if self.keep is not None:
            hit &= tokens != self.keep
        return tokens.masked_fill(hit, UNK)
