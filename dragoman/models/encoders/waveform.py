"""Features from raw samples by a stack of strided convolutions (wav2vec 2.0, Baevski et al. 2020, section 2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Size, setting
from dragoman.layers.feed_forward import ACTIVATIONS
from dragoman.layers.linear import glorot


@dataclass(frozen=True)
class WaveformConvolutionsConfig:
    """Convolutions over the waveform, without padding; then a layer norm and a projection."""

    kind: ClassVar[str] = "waveform"
    channels: tuple[Size, ...] = setting((512,) * 7, help="output channels of each convolution")
    kernels: tuple[Size, ...] = setting((10, 3, 3, 3, 3, 2, 2), help="kernel size of each convolution")
    strides: tuple[Size, ...] = setting((5, 2, 2, 2, 2, 2, 2), help="stride of each convolution")
    norm: Literal["group", "layer"] = setting(
        "group",
        help="group: after the first convolution each channel is normalised over time; layer: layer norm after each",
    )
    bias: bool = setting(False, help="biases in the convolutions")
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = setting("gelu", help="after each convolution")
    norm_epsilon: float = setting(1e-5, help="what the layer norm before the projection adds to the variance")

    def problems(self) -> Iterator[str]:
        if not self.channels:
            yield "channels: found none, expected at least one convolution"
        for name in ("kernels", "strides"):
            if (count := len(getattr(self, name))) != len(self.channels):
                yield f"{name}: found {count} numbers, expected one for each of {len(self.channels)} convolutions"

    @property
    def stride(self) -> int:
        return math.prod(self.strides)

    @property
    def receptive_field(self) -> int:
        """Samples that one output sees."""
        samples = 1
        for kernel, stride in zip(reversed(self.kernels), reversed(self.strides), strict=True):
            samples = (samples - 1) * stride + kernel
        return samples

    def output_length(self, length: int) -> int:
        """Output positions of a row of this many samples."""
        for kernel, stride in zip(self.kernels, self.strides, strict=True):
            length = max(0, (length - kernel) // stride + 1)
        return length


class ChannelNorm(nn.Module):
    """Normalises every channel over the real positions of a row: a group norm with one group per channel."""

    def __init__(self, channels: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, C, T), mask (B, T) → (B, C, T)."""
        real = mask[:, None]
        count = real.sum(2, keepdim=True).clamp(min=1)
        mean = torch.where(real, x, 0.0).sum(2, keepdim=True) / count
        variance = torch.where(real, x - mean, 0.0).square().sum(2, keepdim=True) / count
        return (x - mean) * (variance + self.epsilon).rsqrt() * self.weight[:, None] + self.bias[:, None]


class ChannelLayerNorm(nn.LayerNorm):
    """Layer norm over the channels at every position."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        """(B, C, T) → (B, C, T)."""
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class WaveformConvolutions(nn.Module):
    """Convolution, norm, activation, several times; then W · norm(x) + b. All samples of a real output are real."""

    def __init__(self, config: WaveformConvolutionsConfig, features: int, width: int) -> None:
        super().__init__()
        self.config, self.activation = config, ACTIVATIONS[config.activation]
        self.layers, self.norms = nn.ModuleList(), nn.ModuleDict()
        for index, (out, kernel, stride) in enumerate(
            zip(config.channels, config.kernels, config.strides, strict=True)
        ):
            layer = nn.Conv1d(features, out, kernel, stride, bias=config.bias)
            nn.init.kaiming_normal_(layer.weight)
            self.layers.append(layer)
            if config.norm == "layer":
                self.norms[str(index)] = ChannelLayerNorm(out)
            elif index == 0:
                self.norms["0"] = ChannelNorm(out)
            features = out
        self.norm = nn.LayerNorm(features, eps=config.norm_epsilon)
        self.project = nn.Linear(features, width)
        glorot(self.project)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, 1) → (B, T', E)."""
        x, lengths = x.transpose(1, 2), mask.sum(1)  # (B, C, T)
        for index, (layer, kernel, stride) in enumerate(
            zip(self.layers, self.config.kernels, self.config.strides, strict=True)
        ):
            x = layer(F.pad(x, (0, max(0, kernel - x.shape[2]))))
            lengths = ((lengths - kernel).div(stride, rounding_mode="floor") + 1).clamp(min=0)
            mask = torch.arange(x.shape[2], device=x.device) < lengths[:, None]
            x = self.activation(self.norms[str(index)](x, mask) if str(index) in self.norms else x)
        return self.project(self.norm(x.transpose(1, 2))), mask
