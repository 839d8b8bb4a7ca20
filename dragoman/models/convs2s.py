"""Shared parts of the ConvS2S encoder and decoder (Gehring et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from dragoman.config.settings import Depth, Share, Size, setting
from dragoman.layers.convolution import WeightNormConvolution
from dragoman.layers.embeddings import TokenEmbedding
from dragoman.layers.positions import AbsolutePositionsConfig, LearnedConfig, build_absolute_positions

SQRT_HALF = 0.5**0.5  # keeps the variance of a sum of two


@dataclass(frozen=True)
class ConvS2SStackConfig:
    """Settings of a stack of gated convolutions with residual connections."""

    layers: Depth = setting(6, help="number of convolutions")
    embedding: Size = setting(512, help="size of the embeddings and of the stack's output")
    width: Size = setting(512, help="output channels of every convolution")
    kernel: Size = setting(3, help="kernel size of every convolution, in positions")
    widths: tuple[Size, ...] = setting((), help="output channels layer by layer; replaces width")
    kernels: tuple[Size, ...] = setting((), help="kernel sizes layer by layer; replaces kernel")
    dropout: Share = setting(0.1, help="dropout on embeddings, before every convolution and on the output")
    positions: AbsolutePositionsConfig = setting(LearnedConfig(), help="position embeddings")

    def problems(self) -> Iterator[str]:
        for name in ("widths", "kernels"):
            given = len(getattr(self, name))
            if given not in (0, self.layers):
                yield f"{name}: found {given} numbers, expected one for each of layers = {self.layers}"

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Input channels, output channels and kernel size of every layer; the first layer has inputs = outputs."""
        outputs = self.widths or (self.width,) * self.layers
        kernels = self.kernels or (self.kernel,) * self.layers
        return list(zip((outputs[0], *outputs), outputs, kernels, strict=False))


class ConvS2SInput(nn.Module):
    """Token embedding plus position embedding, then dropout (section 3.1)."""

    def __init__(self, config: ConvS2SStackConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = build_absolute_positions(config.positions, config.embedding)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, start: Tensor | int) -> Tensor:
        """(N, T) → (N, T, E); `start` is the position of the first token."""
        return self.dropout(self.positions(self.embedding(tokens), start))


def shortcut(inputs: int, outputs: int) -> nn.Module:
    """The residual path of a layer: the identity, or a linear map where the sizes differ."""
    return nn.Identity() if inputs == outputs else WeightNormConvolution(inputs, outputs)
