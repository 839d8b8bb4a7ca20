"""Pictures in, a spatial memory out (FIELD A4, D12): one entry for every place of a coarse grid, row after row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.data.images import COLOURS
from dragoman.layers.blocks import glorot
from dragoman.layers.convolution import NonLocal
from dragoman.layers.positions import LearnedConfig
from dragoman.models.characters import Vectors
from dragoman.models.core import Encoder, Memory
from dragoman.models.encoders import ROW_ENCODERS, RowEncoderConfig
from dragoman.models.frames import SCALED_UP
from dragoman.models.transformer import TransformerConfig
from dragoman.settings import Share, Size, setting

GROUPS = 8


@dataclass(frozen=True)
class PictureEncoderConfig:
    """A small residual network (He et al. 2016): every stage halves height and width."""

    kind: ClassVar[str] = "picture"
    channels: tuple[Size, ...] = setting((32, 64, 128, 256), help="channels of every stage")
    blocks: Size = setting(2, help="residual blocks a stage")
    width: Size = setting(256, help="size of the memory")
    non_local: bool = setting(False, help="after the last stage every place also looks at all others (Wang 2018)")
    dropout: Share = setting(0.1, help="on the memory")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if not self.channels:
            yield "channels: found none, expected at least one stage"
        for size in self.channels:
            if size % GROUPS:
                yield f"channels: found {size}, expected multiples of {GROUPS}, the groups of the norms"

    def grid(self, size: int) -> int:
        """Places a side of the memory for pictures of this many pixels a side."""
        for _ in self.channels:
            size = -(-size // 2)
        return size


@dataclass(frozen=True)
class PatchesConfig:
    """Squares of a picture as a row of vectors, for an encoder that otherwise reads tokens (Dosovitskiy 2021)."""

    kind: ClassVar[str] = "patches"
    size: Size = setting(8, help="pixels a side of a square; must divide the picture's")
    dropout: Share = setting(0.0, help="on the squares' vectors")
    inner: RowEncoderConfig = setting(
        TransformerConfig(layers=4, width=256, heads=4, feedforward=1024, positions=LearnedConfig(maximum=1024)),
        help="what reads the squares, row after row",
    )

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if self.inner.embedding == 0:
            yield "inner.embedding: found 0, expected a size: squares have no number of their own"

    @property
    def width(self) -> int:
        """Size of the memory."""
        return self.inner.width

    def grid(self, size: int) -> int:
        """Places a side of the memory for pictures of this many pixels a side."""
        return size // self.size


def pixels(source: Tensor) -> Tensor:
    """Rows of pixels (B, H, W·3), 0 to 1, as colours (B, 3, H, W) around 0."""
    rows, height, _ = source.shape
    return (source.view(rows, height, -1, COLOURS).permute(0, 3, 1, 2) - 0.5) * 4


class ResidualBlock(nn.Module):
    """relu(x + norm(conv(relu(norm(conv(x))))))), the first convolution perhaps taking steps of two.

    Norms are over groups of channels of one picture (Wu and He 2018), so that no picture sees another.
    """

    def __init__(self, inputs: int, channels: int, step: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, channels, 3, step, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.first_norm, self.second_norm = nn.GroupNorm(GROUPS, channels), nn.GroupNorm(GROUPS, channels)
        fits = inputs == channels and step == 1
        self.around = nn.Identity() if fits else nn.Conv2d(inputs, channels, 1, step, bias=False)
        for layer in (self.first, self.second):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(self.second_norm.weight)  # a block begins as its input alone, which trains better

    def forward(self, x: Tensor) -> Tensor:
        """(B, I, H, W) → (B, C, H', W')."""
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.around(x) + self.second_norm(self.second(y)))


class PictureEncoder(nn.Module):
    """Pictures to (B, h·w, D); its final state is the mean over the grid."""

    def __init__(self, config: PictureEncoderConfig, features: int) -> None:
        super().__init__()
        self.width = config.width
        first, *_ = config.channels
        self.stem = nn.Conv2d(COLOURS, first, 3, 1, 1)
        stages: list[nn.Module] = []
        channels = first
        for size in config.channels:
            for number in range(config.blocks):
                stages.append(ResidualBlock(channels, size, 2 if number == 0 else 1))
                channels = size
        if config.non_local:
            stages.append(NonLocal(channels))
        self.stages = nn.Sequential(*stages)
        self.project = nn.Linear(channels, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        glorot(self.project)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source (B, H, W·3); every picture is whole, so the mask (B, H) says nothing."""
        x = self.stages(F.relu(self.stem(pixels(source))))
        entries = self.dropout(self.norm(self.project(x.flatten(2).transpose(1, 2))))  # (B, h·w, D)
        real = torch.ones(entries.shape[:2], dtype=torch.bool, device=x.device)
        return Memory(keys=entries, values=entries, mask=real, final=(entries.mean(1),))


class PatchesEncoder(nn.Module):
    """Squares of a picture, each through one matrix, then any row encoder."""

    inner: Encoder

    def __init__(self, config: PatchesConfig, features: int) -> None:
        super().__init__()
        size = config.inner.embedding
        side = features // COLOURS
        assert side % config.size == 0, f"squares of {config.size} pixels do not fill a picture of {side}"
        self.cut = nn.Conv2d(COLOURS, size, config.size, config.size)
        self.dropout = nn.Dropout(config.dropout)
        self.scale = size**-0.5 if isinstance(config.inner, SCALED_UP) else 1.0
        self.inner = ROW_ENCODERS[type(config.inner)](config.inner, Vectors(size))
        self.width = self.inner.width

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source (B, H, W·3); see PictureEncoder."""
        x = self.cut(pixels(source)).flatten(2).transpose(1, 2)  # (B, h·w, E)
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return self.inner(self.dropout(x) * self.scale, real)
