"""The Transformer encoder (Vaswani et al. 2017, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from dragoman.kernels.fused_layers import residual_norm
from dragoman.layers.embeddings import TokenEmbedding
from dragoman.layers.masking import masked_mean
from dragoman.models.config import TransformerConfig
from dragoman.models.contracts import Encoder, Memory
from dragoman.models.transformer import TransformerBlock, TransformerInput, last_norm, relative_positions_of


class EncoderBlock(TransformerBlock):
    """Every position sees the real ones."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        x, inner = self.enter(x)
        x, inner = self.between(x, self.attention(inner, mask), self.attention_norm, self.feedforward_norm)
        return self.leave(x, self.feedforward(inner))


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
        x = self.input(source, 0)
        for block in self.blocks:
            x = block(x, mask)
        x = residual_norm(x, None, 0.0, self.norm)[1]
        return Memory(keys=x, values=x, mask=mask, final=(masked_mean(x, mask),))
