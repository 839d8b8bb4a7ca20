"""BERT's encoder (FIELD K2; Devlin et al. 2019): token, segment and position embeddings, norm, post-norm blocks.

It reads rows like every other encoder, `a <eos>` or `a <eos> b <eos>`: <eos> is its [SEP], and it puts its [CLS], which
is <sos>, in front itself. Which text a token belongs to follows from the <eos> before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Share, Size, setting
from dragoman.data.tokenizers.base import EOS, SOS
from dragoman.layers.dropout import Dropout
from dragoman.layers.embeddings import TokenEmbedding
from dragoman.layers.masking import crop_to_maximum
from dragoman.layers.positions import NoPositionsConfig
from dragoman.models.contracts import Memory
from dragoman.models.transformer import EncoderBlock, TransformerConfig, last_norm, relative_positions_of


@dataclass(frozen=True)
class BertEncoderConfig:
    """A stack of attention and feed-forward layers over one or two texts."""

    kind: ClassVar[str] = "bert"
    layers: Size = setting(12, help="blocks in the stack")
    width: Size = setting(768, help="size of the vectors that flow through")
    heads: Size = setting(12, help="attention heads; must divide width")
    feedforward: Size = setting(3072, help="inner size of the feed-forward layers")
    dropout: Share = setting(0.1, help="on embeddings and on what each layer adds")
    attention_dropout: Share = setting(0.1, help="on attention weights; above 0 it leaves the fused kernel")
    norm: Literal["post", "pre"] = setting("post", help="norm after the sum as in the paper, or before each layer")
    activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = setting("gelu", help="inside the feed-forward layers")
    max_positions: Size = setting(511, help="most tokens of a row, every <eos> included; [CLS] has a place of its own")
    texts: Size = setting(2, help="texts of a row that are told apart")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if self.width % self.heads:
            yield f"heads: found {self.heads}, expected a divisor of width = {self.width}"

    @property
    def embedding(self) -> int:
        """Width of the token embeddings this stack reads."""
        return self.width

    @property
    def stack(self) -> TransformerConfig:
        """The blocks, to which positions are not told again."""
        return TransformerConfig(
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            feedforward=self.feedforward,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            norm=self.norm,
            activation=self.activation,
            positions=NoPositionsConfig(),
        )


class BertEncoder(nn.Module):
    """Tokens to memory; its final state is what stands at [CLS]."""

    def __init__(self, config: BertEncoderConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        stack = config.stack
        self.width, self.max_positions = config.width, config.max_positions
        self.embedding = embedding
        # As the token table starts, N(0, 1/D): the norm that follows makes any common size one.
        self.positions = nn.Parameter(torch.randn(config.max_positions + 1, config.width) * config.width**-0.5)
        self.texts = nn.Parameter(torch.randn(config.texts, config.width) * config.width**-0.5)
        self.embedding_norm = nn.LayerNorm(config.width)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(stack, relative) for relative in relative_positions_of(stack, causal=False)
        )
        self.norm = last_norm(stack)

    def forward(
        self, source: Tensor, mask: Tensor, hidden: Tensor | None = None, instead: Tensor | None = None
    ) -> Memory:
        """source (B, S), mask (B, S); where `hidden` (B, S) the vector `instead` (D,) stands for the token."""
        source, mask = crop_to_maximum(source, mask, self.max_positions)
        length = source.shape[1] + 1
        embedded = self.embedding(F.pad(source, (1, 0), value=SOS))  # (B, 1+S, D)
        if hidden is not None:
            assert instead is not None
            embedded = torch.where(
                F.pad(hidden[:, : length - 1], (1, 0))[:, :, None], instead.to(embedded.dtype), embedded
            )
        real = F.pad(mask, (1, 0), value=True)
        x = embedded + self.positions[:length] + self.texts[self.text_of(source)]
        x = self.dropout(self.embedding_norm(x))
        for block in self.blocks:
            x = block(x, real)
        x = self.norm(x)
        return Memory(keys=x[:, 1:], values=x[:, 1:], mask=mask, final=(x[:, 0],))

    def text_of(self, source: Tensor) -> Tensor:
        """Which text [CLS] and every token belong to, counted by the <eos> before it: (B, 1+S)."""
        before = (source == EOS).cumsum(1) - (source == EOS).long()
        return F.pad(before, (1, 0)).clamp(max=self.texts.shape[0] - 1)
