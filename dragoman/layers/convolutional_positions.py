"""Positions from a convolution over the sequence (wav2vec 2.0, Baevski et al. 2020, section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Size, setting
from dragoman.layers.feed_forward import ACTIVATIONS


@dataclass(frozen=True)
class ConvolutionalPositionsConfig:
    """A wide grouped convolution whose output is added: it sees how far away its neighbours and the ends are."""

    kind: ClassVar[str] = "convolutional"
    kernel: Size = setting(128, help="positions that an output sees")
    groups: Size = setting(16, help="groups of channels; must divide the width")
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = setting("gelu", help="after the convolution")


class ConvolutionalPositions(nn.Module):
    """x + activation(w ∗ x), with w = magnitude · direction / ‖direction‖ for every place of the kernel.

    Weight normalisation: Salimans and Kingma 2016. Positions on padding must be 0, as beyond the ends of a sequence.
    """

    def __init__(self, config: ConvolutionalPositionsConfig, width: int) -> None:
        super().__init__()
        self.kernel, self.groups, self.activation = config.kernel, config.groups, ACTIVATIONS[config.activation]
        direction = torch.randn(width, width // config.groups, config.kernel) * 2 * (config.kernel * width) ** -0.5
        self.direction = nn.Parameter(direction)
        self.magnitude = nn.Parameter(direction.norm(dim=(0, 1)))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        weight = self.direction * (self.magnitude / self.direction.norm(dim=(0, 1)))
        out = F.conv1d(x.transpose(1, 2), weight, self.bias, padding=self.kernel // 2, groups=self.groups)
        return x + self.activation(out[:, :, : x.shape[1]].transpose(1, 2))  # an even kernel gives one more
