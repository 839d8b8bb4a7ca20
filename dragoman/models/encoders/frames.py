"""Frames in, memory out (FIELD A7): a front end that makes rows shorter, and any row encoder behind it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Range, Share, Size, setting
from dragoman.layers.linear import glorot
from dragoman.models.contracts import Encoder, Memory
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.encoders.sequence import SequenceEncoderConfig, encoder_of_vectors, vector_scale

Stride = Annotated[int, Range(1, 8)]


@dataclass(frozen=True)
class FrameStackingConfig:
    """Some frames side by side, through one matrix."""

    kind: ClassVar[str] = "frame-stacking"
    frames: Size = setting(3, help="frames that become one")

    @property
    def stride(self) -> int:
        """Frames from one place to the next."""
        return self.frames

    def output_length(self, length: int) -> int:
        """How many places are left of so many frames."""
        return -(-length // self.frames)


@dataclass(frozen=True)
class Conv2dSubsamplingConfig:
    """Convolutions of 3 × 3 over time and features; each may take steps of several places either way."""

    kind: ClassVar[str] = "conv2d"
    channels: tuple[Size, ...] = setting((32, 32), help="outputs of each convolution")
    time_strides: tuple[Stride, ...] = setting((2, 2), help="places in time from one output of it to the next")
    feature_strides: tuple[Stride, ...] = setting((2, 2), help="the same along the features")
    norm: bool = setting(True, help="layer norm on what every convolution gives, place by place")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if not self.channels:
            yield "channels: found none, expected at least one convolution"
        for name in ("time_strides", "feature_strides"):
            if (count := len(getattr(self, name))) != len(self.channels):
                yield f"{name}: found {count} numbers, expected one for each of {len(self.channels)} convolutions"

    @property
    def stride(self) -> int:
        """Frames from one place to the next."""
        return math.prod(self.time_strides)

    def output_length(self, length: int) -> int:
        """How many places are left of so many frames."""
        for step in self.time_strides:
            length = -(-length // step)
        return length


SubsamplingConfig = FrameStackingConfig | Conv2dSubsamplingConfig


@dataclass(frozen=True)
class FramesConfig:
    """Rows of features for an encoder that otherwise reads tokens."""

    kind: ClassVar[str] = "frames"
    subsampling: SubsamplingConfig = setting(Conv2dSubsamplingConfig(), help="what makes the row shorter")
    dropout: Share = setting(0.1, help="on what the front gives")
    inner: SequenceEncoderConfig = setting(RecurrentEncoderConfig(), help="what reads what the front gives")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if self.inner.embedding == 0:
            yield "inner.embedding: found 0, expected a size: frames have no number of their own"


class Standardizer(nn.Module):
    """Stored numbers as features, with mean 0 and deviation 1 over the training data where that was asked for.

    Until `learn` is told of a scale, which the codec of the data keeps, numbers pass as they are.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features), persistent=False)
        self.register_buffer("deviation", torch.ones(features), persistent=False)

    @torch.no_grad()
    def set_scale(self, mean: Tensor, deviation: Tensor) -> None:
        """Take over what is subtracted, and what numbers are then divided by: (F,) each."""
        self.mean.copy_(mean)
        self.deviation.copy_(deviation.clamp(min=1e-5))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, F), bytes or floats, mask (B, T) → the model's floats (B, T, F), 0 where nothing is real."""
        return ((x - self.mean) / self.deviation).masked_fill(~mask[:, :, None], 0.0).to(self.mean.dtype)


class Subsampling(Protocol):
    """What stands between features and a row encoder."""

    def __call__(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F) and mask (B, T) → (B, T', E) and mask (B, T'); padding changes nothing."""


class FrameStacking(nn.Module):
    """Every k frames to one vector; what a row lacks to a whole number of them is zeros."""

    def __init__(self, config: FrameStackingConfig, features: int, width: int) -> None:
        super().__init__()
        self.frames = config.frames
        self.project = nn.Linear(config.frames * features, width)
        glorot(self.project)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """See Front."""
        more = -x.shape[1] % self.frames
        x = F.pad(x * mask[:, :, None], (0, 0, 0, more))
        x = x.reshape(x.shape[0], -1, self.frames * x.shape[2])
        return self.project(x), mask[:, :: self.frames]


class Conv2dSubsampling(nn.Module):
    """Before each convolution padding is zero, just as what lies beyond the ends of a row."""

    def __init__(self, config: Conv2dSubsamplingConfig, features: int, width: int) -> None:
        super().__init__()
        self.steps = config.time_strides
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
        """See Front."""
        x = x[:, None]  # (B, C, T, F)
        for layer, norm, step in zip(self.layers, self.norms, self.steps, strict=True):
            x = layer(x * mask[:, None, :, None])
            mask = mask[:, ::step]  # an output stands where the middle of its kernel stood
            x = F.relu(norm(x.transpose(1, 2))).transpose(1, 2)
        return self.project(x.transpose(1, 2).flatten(2)), mask


SUBSAMPLINGS: dict[type, Any] = {
    FrameStackingConfig: FrameStacking,
    Conv2dSubsamplingConfig: Conv2dSubsampling,
}


class FramesEncoder(nn.Module):
    """Features to the memory that a row encoder makes of fewer, wider vectors."""

    inner: Encoder

    def __init__(self, config: FramesConfig, features: int) -> None:
        super().__init__()
        size = config.inner.embedding
        self.subsampling: Subsampling = SUBSAMPLINGS[type(config.subsampling)](config.subsampling, features, size)
        self.dropout = nn.Dropout(config.dropout)
        self.scale = vector_scale(config.inner)
        self.inner = encoder_of_vectors(config.inner)
        self.width = self.inner.width

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source (B, T, F), mask (B, T)."""
        x, mask = self.subsampling(source, mask)
        # Nothing that stands on padding may reach the row encoder, not even as a number times zero.
        x = torch.where(mask[:, :, None], x, 0.0)
        return self.inner(self.dropout(x) * self.scale, mask)
