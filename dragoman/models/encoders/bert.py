"""BERT's encoder (Devlin et al. 2019): token, segment and position embeddings, layer norm, Transformer blocks.

It reads rows like every other encoder, `a <eos>` or `a <eos> b <eos>`. <eos> is its [SEP]. The encoder itself prepends
[CLS], which is <sos>. The segment of a token is the number of <eos> before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Depth, Range, Share, Size, setting
from dragoman.data.tokenizers import EOS, SOS
from dragoman.models.config import TransformerConfig, WidthEmbedding
from dragoman.models.contracts import Encoder, Memory
from dragoman.models.kernels.cpu_dropout import Dropout
from dragoman.models.layers.config import NoPositionsConfig
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.masking import crop_to_maximum
from dragoman.models.transformer import EncoderBlock, build_norm, last_norm, relative_positions_of, through


@dataclass(frozen=True)
class BertEncoderConfig(WidthEmbedding):
    """BERT's Transformer encoder of one or two texts."""

    kind: ClassVar[str] = "bert"
    layers: Depth = setting(12, help="number of Transformer blocks")
    width: Size = setting(768, help="size of the hidden vectors")
    heads: Size = setting(12, help="number of attention heads; must divide width")
    feedforward: Size = setting(3072, help="inner size of the feed-forward layers")
    dropout: Share = setting(0.1, help="dropout on embeddings and on the output of each layer")
    attention_dropout: Share = setting(
        0.1, help="dropout on attention weights; above 0 the fused attention kernel is not used"
    )
    norm: Literal["post", "pre"] = setting("post", help="post-norm as in the paper, or pre-norm")
    activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = setting(
        "gelu", help="activation of the feed-forward layers"
    )
    max_positions: Size = setting(511, help="longest row, in tokens with every <eos>; [CLS] is not counted")
    segments: Size = setting(2, help="number of segment embeddings: texts of a row that are distinguished")
    separators: Annotated[int, Range(1, 2)] = setting(
        1, help="how many <eos> are between two texts; BERT has 1, RoBERTa 2"
    )
    norm_epsilon: Annotated[float, Range(0.0, 1.0)] = setting(
        0.0, help="what the layer norms add to the variance; 0: 1e-5. BERT has 1e-12"
    )

    def problems(self) -> Iterator[str]:
        if self.width % self.heads:
            yield f"heads: found {self.heads}, expected a divisor of width = {self.width}"

    @property
    def stack(self) -> TransformerConfig:
        """Settings of the Transformer blocks; positions are added before them."""
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
            norm_epsilon=self.norm_epsilon,
        )


class BertEncoder(Encoder):
    """The final state is the output at [CLS]."""

    __call__: Callable[..., Memory]
    prepended = ("[CLS]",)
    has_positions = True

    def __init__(self, config: BertEncoderConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        stack = config.stack
        self.width, self.max_positions = config.width, config.max_positions
        self.embedding = embedding
        # Initialised like the token table, N(0, 1/D): the norm that follows removes any common scale.
        self.positions = nn.Parameter(torch.randn(config.max_positions + 1, config.width) * config.width**-0.5)
        self.segments = nn.Parameter(torch.randn(config.segments, config.width) * config.width**-0.5)
        self.embedding_norm = build_norm(stack)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(stack, relative) for relative in relative_positions_of(stack, causal=False)
        )
        self.norm = last_norm(stack)

    def forward(
        self, source: Tensor, mask: Tensor, masked: Tensor | None = None, mask_vector: Tensor | None = None
    ) -> Memory:
        """source (B, S), mask (B, S); `mask_vector` (D,) replaces the embedding where `masked` (B, S) is True."""
        source, mask = crop_to_maximum(source, mask, self.max_positions)
        length = source.shape[1] + 1
        embedded = self.embedding(F.pad(source, (1, 0), value=SOS))  # (B, 1+S, D)
        if masked is not None:
            assert mask_vector is not None
            embedded = torch.where(
                F.pad(masked[:, : length - 1], (1, 0))[:, :, None], mask_vector.to(embedded.dtype), embedded
            )
        real = F.pad(mask, (1, 0), value=True)
        x = embedded + self.positions[:length] + self.segments[self.segment_of(source)]
        x = through(self.blocks, self.dropout(self.embedding_norm(x)), real, self.norm)
        return Memory(keys=x[:, 1:], values=x[:, 1:], mask=mask, final=(x[:, 0],))

    @contextmanager
    def without_positions(self) -> Iterator[None]:
        """Inside the block no position is added."""
        kept = self.positions.data
        self.positions.data = torch.zeros_like(kept)
        try:
            yield
        finally:
            self.positions.data = kept

    def segment_of(self, source: Tensor) -> Tensor:
        """The segment of [CLS] and of every token (B, 1+S): the number of <eos> before it."""
        before = (source == EOS).cumsum(1) - (source == EOS).long()
        return F.pad(before, (1, 0)).clamp(max=self.segments.shape[0] - 1)
