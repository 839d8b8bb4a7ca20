"""Data augmentation of features while training. It depends on torch's random state alone.

The trainer seeds that state for every batch, so a resumed run augments its batches as the uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from dragoman.base.config import Range, Share, SizeOrNone, setting

Amount = Annotated[float, Range(0.0, 1.0)]


@dataclass(frozen=True)
class NoAugmentationConfig:
    """No augmentation."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class SpecAugmentConfig:
    """Time and frequency masks (SpecAugment, Park et al. 2019), changes of speed, pitch and loudness, and noise."""

    kind: ClassVar[str] = "specaugment"
    times: SizeOrNone = setting(2, help="time masks per row")
    time_share: Amount = setting(0.05, help="maximum length of a time mask, as a share of the row")
    bands: SizeOrNone = setting(2, help="frequency masks per row")
    band_share: Amount = setting(0.2, help="maximum width of a frequency mask, as a share of the features")
    squeeze: Share = setting(0.0, help="maximum speed-up of a row, as a share; none is slowed down")
    stretch: Share = setting(0.0, help="maximum stretch of the features up or down, as a share: another voice")
    loudness: Amount = setting(0.0, help="maximum added to or subtracted from all features of a row")
    noise: Share = setting(0.0, help="standard deviation of noise on every feature")


@dataclass(frozen=True)
class LineAugmentConfig:
    """Images of text lines: squeezed, slanted, shifted, with more or less ink, and with noise."""

    kind: ClassVar[str] = "line"
    shift: SizeOrNone = setting(2, help="maximum shift in pixels, vertically and along the line")
    contrast: Amount = setting(0.2, help="maximum change of the ink, as a share")
    noise: Share = setting(0.02, help="standard deviation of noise on every pixel")
    squeeze: Share = setting(0.0, help="maximum shortening of a line, as a share; none is lengthened")
    stretch: Share = setting(0.0, help="maximum change of the height of letters, as a share")
    slant: Amount = setting(0.0, help="maximum slant of letters, in pixels along the line per pixel of height")


@dataclass(frozen=True)
class ImageAugmentConfig:
    """Images: shifted, cropped, mirrored, with other brightness, contrast and colours."""

    kind: ClassVar[str] = "picture"
    shift: SizeOrNone = setting(4, help="maximum shift in pixels, vertically and horizontally")
    contrast: Amount = setting(0.2, help="maximum change of the distance from grey, as a share")
    brightness: Amount = setting(0.1, help="maximum added to all colours, which range from 0 to 1")
    mirror: bool = setting(True, help="flip half of the images horizontally")
    zoom: Share = setting(0.0, help="maximum crop of height and width, as a share; the rest is enlarged")
    colour: Amount = setting(0.0, help="maximum change of each of the three colours, as a share")


AugmentationConfig = NoAugmentationConfig | SpecAugmentConfig | LineAugmentConfig | ImageAugmentConfig


def spans(rows: int, lengths: Tensor, count: int, share: float, size: int) -> Tensor:
    """`count` random spans of at most `share` of the length of each row: (B, size), True inside a span.

    Width and start are uniform, as in the paper.
    """
    if not count:
        return torch.zeros(rows, size, dtype=torch.bool, device=lengths.device)
    widths = (torch.rand(rows, count, device=lengths.device) * (share * lengths[:, None] + 1)).floor()
    widths = widths.minimum((share * lengths[:, None]).floor())
    first = (torch.rand(rows, count, device=lengths.device) * (lengths[:, None] - widths + 1)).floor()
    positions = torch.arange(size, device=lengths.device)
    return ((positions >= first[:, :, None]) & (positions < (first + widths)[:, :, None])).any(1)


def spec_augment(config: SpecAugmentConfig, x: Tensor, mask: Tensor) -> Tensor:
    """(B, T, F) and its mask (B, T) → (B, T, F). Masked features become 0, which is the mean of normalised features."""
    rows, length, features = x.shape
    if config.squeeze or config.stretch:
        x = warp(x, config.squeeze, config.stretch, 0.0)
    if config.loudness:
        x = x + uniform(rows, config.loudness, x)
    if config.noise:
        x = x + config.noise * torch.randn_like(x)
    if config.squeeze or config.stretch or config.loudness or config.noise:
        x = x * mask[:, :, None]
    times = spans(rows, mask.sum(1), config.times, config.time_share, length)
    wide = torch.full((rows,), features, device=x.device)
    bands = spans(rows, wide, config.bands, config.band_share, features)
    return x.masked_fill(times[:, :, None] | bands[:, None], 0.0)


def shift_rows(x: Tensor, shift: Tensor, axis: int) -> Tensor:
    """Rows shifted along an axis by whole positions, shift (B,); zeros move in."""
    size = x.shape[axis]
    shape = [-1 if dim == axis else 1 for dim in range(x.dim())]
    rows = [-1 if dim == 0 else 1 for dim in range(x.dim())]
    origin = torch.arange(size, device=x.device).view(shape) - shift.view(rows)
    inside = (origin >= 0) & (origin < size)
    return x.gather(axis, origin.clamp(0, size - 1).expand_as(x)) * inside


def random_shifts(rows: int, maximum: int, device: torch.device) -> Tensor:
    return torch.randint(-maximum, maximum + 1, (rows,), device=device)


def uniform(rows: int, amount: float, like: Tensor) -> Tensor:
    """A uniform number from −amount to amount for every row: (B, 1, 1)."""
    return (2 * torch.rand(rows, 1, 1, device=like.device, dtype=like.dtype) - 1) * amount


def warp(x: Tensor, squeeze: float, stretch: float, slant: float) -> Tensor:
    """Warp rows (B, T, F): out(t, f) = in(a·t + s·(f − m), m + b·(f − m)), m the middle height.

    1 ≤ a ≤ 1/(1 − squeeze), 1 − stretch ≤ b ≤ 1 + stretch and |s| ≤ slant are drawn for every row. Values
    between pixels are interpolated; outside of the row they are 0.
    """
    rows, length, height = x.shape
    middle = (height - 1) / 2
    along = torch.arange(length, device=x.device, dtype=x.dtype)[None, :, None]
    down = torch.arange(height, device=x.device, dtype=x.dtype)[None, None] - middle
    shorter = 1 / (1 - squeeze * torch.rand(rows, 1, 1, device=x.device, dtype=x.dtype))
    higher, lean = 1 + uniform(rows, stretch, x), uniform(rows, slant, x)
    grid = torch.stack(
        [
            (middle + higher * down).expand(rows, length, height) * 2 / max(1, height - 1) - 1,
            (along * shorter + lean * down) * 2 / max(1, length - 1) - 1,
        ],
        -1,
    )  # (B, T, F, 2), from −1 to 1; the last axis of x first
    return nn.functional.grid_sample(x[:, None], grid, align_corners=True)[:, 0]


def line_augment(config: LineAugmentConfig, x: Tensor, mask: Tensor) -> Tensor:
    """(B, T, F), T along the line and F down it → the same shape. Ink is positive and paper 0; padding stays 0."""
    rows = x.shape[0]
    if config.squeeze or config.stretch or config.slant:
        x = warp(x, config.squeeze, config.stretch, config.slant)
    if config.shift:
        x = shift_rows(x, random_shifts(rows, config.shift, x.device), 2)
        x = shift_rows(x, random_shifts(rows, config.shift, x.device), 1)
    if config.contrast:
        x = x * (1 + uniform(rows, config.contrast, x))
    if config.noise:
        x = x + config.noise * torch.randn_like(x)
    return x * mask[:, :, None]


def random_crop(positions: Tensor, share: float) -> Tensor:
    """Positions (B, n) of a random part of each row, of at least (1 − share) · n, enlarged to n."""
    rows, size = positions.shape
    kept = 1 - share * torch.rand(rows, 1, device=positions.device)
    first = torch.rand(rows, 1, device=positions.device) * (1 - kept) * (size - 1)
    return (first + positions * kept).round().long()


def image_augment(config: ImageAugmentConfig, x: Tensor, mask: Tensor) -> Tensor:
    """(B, H, W·3) → (B, H, W·3). Colours range from 0 to 1; a shift repeats the pixels of the edge."""
    rows, height, _ = x.shape
    pixels = x.view(rows, height, -1, 3)
    down, across = (torch.arange(size, device=x.device).expand(rows, -1) for size in pixels.shape[1:3])
    if config.zoom:
        down, across = (random_crop(positions, config.zoom) for positions in (down, across))
    if config.shift:
        down = (down + random_shifts(rows, config.shift, x.device)[:, None]).clamp(0, height - 1)
        across = (across + random_shifts(rows, config.shift, x.device)[:, None]).clamp(0, pixels.shape[2] - 1)
    if config.mirror:
        flipped = torch.rand(rows, 1, device=x.device) < 0.5
        across = torch.where(flipped, across.flip(1), across)
    row = torch.arange(rows, device=x.device)[:, None, None]
    x = pixels[row, down[:, :, None], across[:, None]].view_as(x)
    if config.colour:
        strength = 1 + config.colour * (2 * torch.rand(rows, 1, 1, 3, device=x.device) - 1)
        x = (x.view_as(pixels) * strength).view_as(x)
    if config.contrast or config.brightness:
        x = (x - 0.5) * (1 + uniform(rows, config.contrast, x)) + 0.5 + uniform(rows, config.brightness, x)
    return x


AUGMENTATIONS: dict[type, Callable[[Any, Tensor, Tensor], Tensor]] = {
    NoAugmentationConfig: lambda config, x, mask: x,
    SpecAugmentConfig: spec_augment,
    LineAugmentConfig: line_augment,
    ImageAugmentConfig: image_augment,
}


class Augmentation(nn.Module):
    """The configured augmentation while training; nothing otherwise."""

    def __init__(self, config: AugmentationConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, F), mask (B, T) → (B, T, F)."""
        return AUGMENTATIONS[type(self.config)](self.config, x, mask) if self.training else x
