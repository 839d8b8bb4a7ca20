"""Encoders of waveforms, audio frames, columns of text lines and videos: subsampling, then any sequence encoder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base.config import Range, Share, Size, setting
from dragoman.data.media import COLOURS
from dragoman.models.contracts import Encoder, Memory
from dragoman.models.encoders.images import ResNetConfig, ResNetEncoder
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.encoders.sequence import SequenceEncoderConfig, encoder_of_vectors, vector_scale
from dragoman.models.layers.config import NoPositionsConfig
from dragoman.models.layers.feed_forward import ACTIVATIONS
from dragoman.models.layers.linear import glorot


def convolution_problems(config: Any, *names: str) -> Iterator[str]:
    """Errors of settings that have a number for each of the convolutions with `channels`."""
    if not config.channels:
        yield "channels: found none, expected at least one convolution"
    for name in names:
        if (count := len(getattr(config, name))) != len(config.channels):
            yield f"{name}: found {count} numbers, expected one for each of {len(config.channels)} convolutions"


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
        return convolution_problems(self, "kernels", "strides")

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


Stride = Annotated[int, Range(1, 8)]


@dataclass(frozen=True)
class FrameStackingConfig:
    """Concatenate n frames and project them to one vector."""

    kind: ClassVar[str] = "frame-stacking"
    frames: Size = setting(3, help="n, frames per vector")

    @property
    def stride(self) -> int:
        return self.frames

    def output_length(self, length: int) -> int:
        return -(-length // self.frames)


@dataclass(frozen=True)
class Conv2dSubsamplingConfig:
    """3 × 3 convolutions over time and features, with strides."""

    kind: ClassVar[str] = "conv2d"
    channels: tuple[Size, ...] = setting((32, 32), help="output channels of each convolution")
    time_strides: tuple[Stride, ...] = setting((2, 2), help="stride of each convolution in time")
    feature_strides: tuple[Stride, ...] = setting((2, 2), help="stride of each convolution along the features")
    norm: bool = setting(True, help="layer norm after every convolution")

    def problems(self) -> Iterator[str]:
        return convolution_problems(self, "time_strides", "feature_strides")

    @property
    def stride(self) -> int:
        return math.prod(self.time_strides)

    def output_length(self, length: int) -> int:
        for stride in self.time_strides:
            length = -(-length // stride)
        return length


@dataclass(frozen=True)
class Conv1dSubsamplingConfig:
    """Convolutions over time, with strides; all features at once, as in Whisper."""

    kind: ClassVar[str] = "conv1d"
    kernel: Annotated[int, Range(1, 99)] = setting(3, help="frames that an output sees, an odd number")
    strides: tuple[Stride, ...] = setting((1, 2), help="stride of each convolution")
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = setting("gelu", help="after each convolution")

    def problems(self) -> Iterator[str]:
        if not self.strides:
            yield "strides: found none, expected at least one convolution"
        if self.kernel % 2 == 0:
            yield f"kernel: found {self.kernel}, expected an odd number"

    @property
    def stride(self) -> int:
        return math.prod(self.strides)

    def output_length(self, length: int) -> int:
        for stride in self.strides:
            length = -(-length // stride)
        return length


@dataclass(frozen=True)
class PictureFramesConfig:
    """A small residual network (He et al. 2016) over each frame of a video; its mean is the vector of the frame."""

    kind: ClassVar[str] = "pictures"
    network: ResNetConfig = setting(
        ResNetConfig(channels=(16, 32, 64), blocks=1, width=128), help="the network; all frames share it"
    )
    stride: ClassVar[int] = 1

    def output_length(self, length: int) -> int:
        return length


SubsamplingConfig = (
    FrameStackingConfig
    | Conv2dSubsamplingConfig
    | Conv1dSubsamplingConfig
    | PictureFramesConfig
    | WaveformConvolutionsConfig
)
FramePositionsConfig = NoPositionsConfig | ConvolutionalPositionsConfig


@dataclass(frozen=True)
class FramesConfig:
    """Subsampled frames for a sequence encoder."""

    kind: ClassVar[str] = "frames"
    subsampling: SubsamplingConfig = setting(Conv2dSubsamplingConfig(), help="how rows of frames are shortened")
    dropout: Share = setting(0.1, help="dropout on the subsampled frames")
    positions: FramePositionsConfig = setting(
        NoPositionsConfig(), help="positions that are added before the inner encoder, which may add its own"
    )
    inner: SequenceEncoderConfig = setting(RecurrentEncoderConfig(), help="encoder of the subsampled frames")

    def problems(self) -> Iterator[str]:
        if self.inner.embedding == 0:
            yield "inner.embedding: found 0 (one-hot tokens), expected a size: the inner encoder reads vectors"
        groups = getattr(self.positions, "groups", 1)
        if self.inner.embedding % groups:
            yield f"positions.groups: found {groups}, expected a divisor of inner's width, {self.inner.embedding}"


class Standardizer(nn.Module):
    """Standardises features to mean 0 and deviation 1 over the training data.

    The data's codec keeps the scale; before `set_scale` features stay unchanged.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features), persistent=False)
        self.register_buffer("deviation", torch.ones(features), persistent=False)

    @torch.no_grad()
    def set_scale(self, mean: Tensor, deviation: Tensor) -> None:
        """Set the mean and the standard deviation, (F,) each."""
        self.mean.copy_(mean)
        self.deviation.copy_(deviation.clamp(min=1e-5))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, F), bytes or floats, mask (B, T) → floats (B, T, F), 0 on padding."""
        return ((x - self.mean) / self.deviation).masked_fill(~mask[:, :, None], 0.0).to(self.mean.dtype)


class FrameStacking(nn.Module):
    """Projects every n frames to one vector; the last ones are padded with zeros."""

    def __init__(self, config: FrameStackingConfig, features: int, width: int) -> None:
        super().__init__()
        self.frames = config.frames
        self.project = nn.Linear(config.frames * features, width)
        glorot(self.project)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F) → (B, ⌈T / n⌉, E)."""
        more = -x.shape[1] % self.frames
        x = F.pad(x * mask[:, :, None], (0, 0, 0, more))
        x = x.reshape(x.shape[0], -1, self.frames * x.shape[2])
        return self.project(x), mask[:, :: self.frames]


class Conv2dSubsampling(nn.Module):
    """A stack of strided convolutions; padding is set to zero before each, as beyond the ends of a row."""

    def __init__(self, config: Conv2dSubsamplingConfig, features: int, width: int) -> None:
        super().__init__()
        self.strides = config.time_strides
        self.layers, self.norms = nn.ModuleList(), nn.ModuleList()
        channels = 1
        for out, time, feature in zip(config.channels, config.time_strides, config.feature_strides, strict=True):
            layer = nn.Conv2d(channels, out, 3, stride=(time, feature), padding=1)
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
            features, channels = -(-features // feature), out
            self.layers.append(layer)
            self.norms.append(nn.LayerNorm((out, features)) if config.norm else nn.Identity())
        self.project = nn.Linear(channels * features, width)
        glorot(self.project)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F) → (B, T', E)."""
        x = x[:, None]  # (B, C, T, F)
        for layer, norm, stride in zip(self.layers, self.norms, self.strides, strict=True):
            x = layer(x * mask[:, None, :, None])
            mask = mask[:, ::stride]  # an output has the position of its kernel's centre
            x = F.relu(norm(x.transpose(1, 2))).transpose(1, 2)
        return self.project(x.transpose(1, 2).flatten(2)), mask


class Conv1dSubsampling(nn.Module):
    """A stack of strided convolutions over time; padding is set to zero before each, as beyond the ends of a row."""

    def __init__(self, config: Conv1dSubsamplingConfig, features: int, width: int) -> None:
        super().__init__()
        self.strides, self.activation = config.strides, ACTIVATIONS[config.activation]
        self.layers = nn.ModuleList()
        for stride in config.strides:
            layer = nn.Conv1d(features, width, config.kernel, stride, padding=config.kernel // 2)
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
            self.layers.append(layer)
            features = width

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F) → (B, T', E)."""
        x = x.transpose(1, 2)  # (B, F, T)
        for layer, stride in zip(self.layers, self.strides, strict=True):
            x = self.activation(layer(x * mask[:, None]))
            mask = mask[:, ::stride]  # an output has the position of its kernel's centre
        return x.transpose(1, 2), mask


class PictureFrames(nn.Module):
    """The mean of each frame's feature map, projected; frames on padding are computed too, which keeps shapes fixed."""

    def __init__(self, config: PictureFramesConfig, features: int, width: int) -> None:
        super().__init__()
        self.side = math.isqrt(features // COLOURS)
        assert features == COLOURS * self.side**2, "frames are square pictures"
        self.network = ResNetEncoder(config.network, COLOURS * self.side)
        self.project = nn.Linear(config.network.width, width)
        glorot(self.project)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F) → (B, T, E)."""
        (vectors,) = self.network(x.reshape(-1, self.side, COLOURS * self.side), mask).final
        return self.project(vectors.view(*mask.shape, -1)), mask


# Modules that shorten rows: (B, T, F) and mask (B, T) → (B, T', E) and mask (B, T'). Padding changes no real position.
SUBSAMPLINGS: dict[type, Any] = {
    Conv1dSubsamplingConfig: Conv1dSubsampling,
    FrameStackingConfig: FrameStacking,
    Conv2dSubsamplingConfig: Conv2dSubsampling,
    PictureFramesConfig: PictureFrames,
    WaveformConvolutionsConfig: WaveformConvolutions,
}


class FramesEncoder(Encoder):
    """Subsampling, positions and a sequence encoder."""

    inner: Encoder

    def __init__(self, config: FramesConfig, features: int) -> None:
        super().__init__()
        size = config.inner.embedding
        self.subsampling = SUBSAMPLINGS[type(config.subsampling)](config.subsampling, features, size)
        self.dropout = nn.Dropout(config.dropout)
        self.positions: nn.Module = nn.Identity()
        if isinstance(config.positions, ConvolutionalPositionsConfig):
            self.positions = ConvolutionalPositions(config.positions, size)
        self.scale = vector_scale(config.inner)
        self.inner = encoder_of_vectors(config.inner)
        self.width = self.inner.width

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        x, mask = self.subsampling(source, mask)
        # A NaN on padding would reach real positions even when multiplied by zero.
        x = self.positions(self.dropout(torch.where(mask[:, :, None], x, 0.0)))
        return self.inner(x * self.scale, mask)
