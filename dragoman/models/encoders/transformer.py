"""The Transformer encoder (Vaswani et al. 2017, section 3.1)."""

from __future__ import annotations

from torch import Tensor, nn

from dragoman.layers.dropout import Dropout
from dragoman.layers.embeddings import TokenEmbedding
from dragoman.layers.masking import masked_mean
from dragoman.layers.relative_positions import RelativePositions
from dragoman.models.contracts import Encoder, Memory
from dragoman.models.transformer import (
    TransformerConfig,
    TransformerInput,
    build_norm,
    feed_forward,
    last_norm,
    relative_positions_of,
    self_attention,
)


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward (section 3.1)."""

    compile_in_training = True

    def __init__(self, config: TransformerConfig, relative: RelativePositions) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention = self_attention(config, relative)
        self.feedforward = feed_forward(config)
        self.attention_norm = build_norm(config)
        self.feedforward_norm = build_norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        if self.pre_norm:
            x = x + self.dropout(self.attention(self.attention_norm(x), mask))
            x = x + self.dropout(self.feedforward(self.feedforward_norm(x)))
        else:
            x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
            x = self.feedforward_norm(x + self.dropout(self.feedforward(x)))
        return x


class TransformerEncoder(Encoder):
    """A stack of encoder blocks; the final state is the mean over real positions."""

    def __init__(self, config: TransformerConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.width = config.width
        self.input = TransformerInput(config, embedding)
        self.blocks = nn.ModuleList(
            EncoderBlock(config, relative) for relative in relative_positions_of(config, causal=False)
        )
        self.norm = last_norm(config)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        x = self.input(source, 0)
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        return Memory(keys=x, values=x, mask=mask, final=(masked_mean(x, mask),))
