"""The Transformer encoder (Vaswani et al. 2017, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from dragoman.models.config import TransformerConfig
from dragoman.models.contracts import Encoder, Memory
from dragoman.models.kernels.fused_layers import residual_norm
from dragoman.models.layers.embeddings import TokenEmbedding
from dragoman.models.layers.masking import masked_mean
from dragoman.models.transformer import Stream, TransformerBlock, TransformerInput, last_norm, relative_positions_of


class EncoderBlock(TransformerBlock):
    """Every position sees the real ones."""

    def forward(self, stream: Stream, mask: Tensor) -> Stream:
        """(B, S, D) → (B, S, D)."""
        x, inner = self.enter(stream)
        x, inner = self.between(x, self.attention(inner, mask), self.attention_norm, self.feedforward_norm)
        return self.leave(x, self.feedforward(inner))


def through(blocks: nn.ModuleList, x: Tensor, mask: Tensor, norm: nn.Module) -> Tensor:
    """(B, S, D) through a stack of encoder blocks, and the norm after them."""
    stream, rate = Stream(x), 0.0
    for block in blocks:
        assert isinstance(block, EncoderBlock)
        stream, rate = block(stream, mask), block.rate
    return residual_norm(*stream, rate, norm)[1]


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

    @property
    def units(self) -> Sequence[nn.Module]:  # type: ignore[override]
        return list(self.blocks)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        x = through(self.blocks, self.input(source, 0), mask, self.norm)
        return Memory(keys=x, values=x, mask=mask, final=(masked_mean(x, mask),))
