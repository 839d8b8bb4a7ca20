"""The encoder of ConvS2S (Gehring et al. 2017, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dragoman.config.settings import Size, setting
from dragoman.layers.convolution import GatedConvolution, WeightNormConvolution
from dragoman.layers.embeddings import TokenEmbedding
from dragoman.layers.masking import masked_mean
from dragoman.models.contracts import Encoder, Memory
from dragoman.models.convs2s import SQRT_HALF, ConvS2SInput, ConvS2SStackConfig, shortcut


@dataclass(frozen=True)
class ConvS2SEncoderConfig(ConvS2SStackConfig):
    """Gated convolutions that see both sides of a position."""

    kind: ClassVar[str] = "convs2s"
    attentions: Size | None = setting(
        None,
        help="number n of attention layers that read the memory: gradients into the stack are divided by 2n; "
        "none: the encoder's own number of layers",
    )


class ScaledGradient(torch.autograd.Function):
    """The identity, with a factor on the gradient."""

    @staticmethod
    def forward(context: Any, x: Tensor, scale: float) -> Tensor:
        context.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * context.scale, None


class ConvS2SEncoderLayer(nn.Module):
    """One gated convolution with its residual connection."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.shortcut = shortcut(inputs, outputs)
        self.convolution = GatedConvolution(inputs, outputs, kernel, dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D')."""
        return (self.convolution(x, mask) + self.shortcut(x)) * SQRT_HALF


class ConvS2SEncoder(Encoder):
    """Memory with keys z from the stack and values (z + e)·√½, where e are the embeddings (section 3.3).

    Every attention layer of the decoder sends gradients back. Those into the stack are scaled by 1 / (2 × attention
    layers), those into the embeddings are not (section 3.5). The final state is the mean of the values.
    """

    def __init__(self, config: ConvS2SEncoderConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.width = config.embedding
        self.input = ConvS2SInput(config, embedding)
        shapes = config.shapes
        self.project_in = WeightNormConvolution(config.embedding, shapes[0][0], gain=1 - config.dropout)
        self.layers = nn.ModuleList(ConvS2SEncoderLayer(*shape, config.dropout) for shape in shapes)
        self.project_out = WeightNormConvolution(shapes[-1][1], config.embedding)
        self.gradient_scale = 1 / (2 * (config.attentions or config.layers))

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        embedded = self.input(source, 0)  # (B, S, E)
        x = self.project_in(embedded)
        for layer in self.layers:
            x = layer(x, mask)
        keys: Tensor = ScaledGradient.apply(self.project_out(x), self.gradient_scale)  # type: ignore[no-untyped-call]
        values = (keys + embedded) * SQRT_HALF
        return Memory(keys=keys, values=values, mask=mask, final=(masked_mean(values, mask),))
