"""Small changes to features while training: they follow from torch's random state alone.

The training loop seeds that state for every batch, so a resumed run changes its batches as it would have done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from dragoman.config.settings import Range, Share, SizeOrNone, setting

Amount = Annotated[float, Range(0.0, 1.0)]


@dataclass(frozen=True)
class NoAugmentationConfig:
    """Features as they are."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class SpecAugmentConfig:
    """Stretches of time and bands silenced (SpecAugment, Park et al. 2019), and rows changed like other voices."""

    kind: ClassVar[str] = "specaugment"
    times: SizeOrNone = setting(2, help="stretches of time silenced in every row")
    time_share: Amount = setting(0.05, help="longest such stretch, as a share of the row")
    bands: SizeOrNone = setting(2, help="bands of features silenced in every row")
    band_share: Amount = setting(0.2, help="widest such band, as a share of the features")
    squeeze: Share = setting(0.0, help="most by which a row is made faster, as a share; none is made slower")
    stretch: Share = setting(0.0, help="most by which features are spread up or down, as a share: another voice")
    loudness: Amount = setting(0.0, help="most that is added to all features of a row, or taken from them")
    noise: Share = setting(0.0, help="deviation of what is added to every feature")


@dataclass(frozen=True)
class LineAugmentConfig:
    """Lines of text squeezed, slanted, moved up or down, inked more or less, and speckled."""

    kind: ClassVar[str] = "line"
    shift: SizeOrNone = setting(2, help="most pixels a line is moved up or down, or along")
    contrast: Amount = setting(0.2, help="most by which the ink changes, as a share")
    noise: Share = setting(0.02, help="deviation of what is added to every pixel")
    squeeze: Share = setting(0.0, help="most by which a line is made shorter, as a share; none is made longer")
    stretch: Share = setting(0.0, help="most by which letters are made higher or lower, as a share")
    slant: Amount = setting(0.0, help="most pixels that letters lean along the line for every pixel of height")


@dataclass(frozen=True)
class ImageAugmentConfig:
    """Pictures moved or cut a little, brighter or darker, with more or less contrast, and mirrored."""

    kind: ClassVar[str] = "picture"
    shift: SizeOrNone = setting(4, help="most pixels a picture is moved, down and across")
    contrast: Amount = setting(0.2, help="most by which the distance from grey changes, as a share")
    brightness: Amount = setting(0.1, help="most that is added to all colours, of 1")
    mirror: bool = setting(True, help="half of the pictures left to right")
    zoom: Share = setting(0.0, help="most that is cut away of height and of width, as a share; the rest is enlarged")
    colour: Amount = setting(0.0, help="most by which each of the three colours is made stronger or weaker, as a share")


AugmentationConfig = NoAugmentationConfig | SpecAugmentConfig | LineAugmentConfig | ImageAugmentConfig


def spans(rows: int, lengths: Tensor, count: int, share: float, size: int) -> Tensor:
    """Where `count` random stretches of at most `share` of each row's length lie: (B, size), True inside one.

    Both the width and where it begins are uniform, as in the paper.
    """
    if not count:
        return torch.zeros(rows, size, dtype=torch.bool, device=lengths.device)
    widths = (torch.rand(rows, count, device=lengths.device) * (share * lengths[:, None] + 1)).floor()
    widths = widths.minimum((share * lengths[:, None]).floor())
    first = (torch.rand(rows, count, device=lengths.device) * (lengths[:, None] - widths + 1)).floor()
    places = torch.arange(size, device=lengths.device)
    return ((places >= first[:, :, None]) & (places < (first + widths)[:, :, None])).any(1)


class SpecAugment(nn.Module):
    """What is silenced becomes 0, the mean of features that were normalised."""

    def __init__(self, config: SpecAugmentConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, F) and its mask (B, T) → (B, T, F)."""
        config, (rows, length, features) = self.config, x.shape
        if config.squeeze or config.stretch:
            x = leaning(x, config.squeeze, config.stretch, 0.0)
        if config.loudness:
            x = x + around(rows, config.loudness, x)
        if config.noise:
            x = x + config.noise * torch.randn_like(x)
        if config.squeeze or config.stretch or config.loudness or config.noise:
            x = x * mask[:, :, None]
        times = spans(rows, mask.sum(1), config.times, config.time_share, length)
        wide = torch.full((rows,), features, device=x.device)
        bands = spans(rows, wide, config.bands, config.band_share, features)
        return x.masked_fill(times[:, :, None] | bands[:, None], 0.0)


def moved(x: Tensor, shift: Tensor, axis: int) -> Tensor:
    """Rows moved along an axis by whole places each, shift (B,); what comes in from beyond is 0."""
    size = x.shape[axis]
    shape = [-1 if place == axis else 1 for place in range(x.dim())]
    rows = [-1 if place == 0 else 1 for place in range(x.dim())]
    origin = torch.arange(size, device=x.device).view(shape) - shift.view(rows)
    inside = (origin >= 0) & (origin < size)
    return x.gather(axis, origin.clamp(0, size - 1).expand_as(x)) * inside


def drawn(rows: int, most: int, device: torch.device) -> Tensor:
    """A whole number from −most to most for every row, all as likely."""
    return torch.randint(-most, most + 1, (rows,), device=device)


def around(rows: int, amount: float, like: Tensor) -> Tensor:
    """A number from −amount to amount for every row: (B, 1, 1)."""
    return (2 * torch.rand(rows, 1, 1, device=like.device, dtype=like.dtype) - 1) * amount


def leaning(x: Tensor, squeeze: float, stretch: float, slant: float) -> Tensor:
    """Rows (B, T, F) as seen by a crooked eye: out(t, f) = in(a·t + s·(f − m), m + b·(f − m)), m the middle height.

    1 ≤ a ≤ 1/(1 − squeeze), 1 − stretch ≤ b ≤ 1 + stretch and |s| ≤ slant are drawn for every row; what lies between
    pixels is interpolated, and beyond the line is paper.
    """
    rows, length, height = x.shape
    middle = (height - 1) / 2
    along = torch.arange(length, device=x.device, dtype=x.dtype)[None, :, None]
    down = torch.arange(height, device=x.device, dtype=x.dtype)[None, None] - middle
    shorter = 1 / (1 - squeeze * torch.rand(rows, 1, 1, device=x.device, dtype=x.dtype))
    higher, lean = 1 + around(rows, stretch, x), around(rows, slant, x)
    places = torch.stack(
        [
            (middle + higher * down).expand(rows, length, height) * 2 / max(1, height - 1) - 1,
            (along * shorter + lean * down) * 2 / max(1, length - 1) - 1,
        ],
        -1,
    )  # (B, T, F, 2), from −1 to 1; the last axis of x first
    return nn.functional.grid_sample(x[:, None], places, align_corners=True)[:, 0]


class LineAugment(nn.Module):
    """Ink stays where a row is real; paper is 0."""

    def __init__(self, config: LineAugmentConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, F), T along the line and F down it → the same shape."""
        config, rows = self.config, x.shape[0]
        if config.squeeze or config.stretch or config.slant:
            x = leaning(x, config.squeeze, config.stretch, config.slant)
        if config.shift:
            x = moved(x, drawn(rows, config.shift, x.device), 2)
            x = moved(x, drawn(rows, config.shift, x.device), 1)
        if config.contrast:
            x = x * (1 + around(rows, config.contrast, x))
        if config.noise:
            x = x + config.noise * torch.randn_like(x)
        return x * mask[:, :, None]


def zoomed(places: Tensor, share: float) -> Tensor:
    """Places (B, n) of a random part of each row, of at least (1 − share) · n, spread over n again."""
    rows, size = places.shape
    kept = 1 - share * torch.rand(rows, 1, device=places.device)
    first = torch.rand(rows, 1, device=places.device) * (1 - kept) * (size - 1)
    return (first + places * kept).round().long()


class ImageAugment(nn.Module):
    """Colours are numbers from 0 to 1; what comes in from beyond an edge repeats it."""

    def __init__(self, config: ImageAugmentConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, H, W·3) → (B, H, W·3)."""
        config, (rows, height, _) = self.config, x.shape
        pixels = x.view(rows, height, -1, 3)
        down, across = (torch.arange(size, device=x.device).expand(rows, -1) for size in pixels.shape[1:3])
        if config.zoom:
            down, across = (zoomed(places, config.zoom) for places in (down, across))
        if config.shift:
            down = (down + drawn(rows, config.shift, x.device)[:, None]).clamp(0, height - 1)
            across = (across + drawn(rows, config.shift, x.device)[:, None]).clamp(0, pixels.shape[2] - 1)
        if config.mirror:
            turned = torch.rand(rows, 1, device=x.device) < 0.5
            across = torch.where(turned, across.flip(1), across)
        number = torch.arange(rows, device=x.device)[:, None, None]
        x = pixels[number, down[:, :, None], across[:, None]].view_as(x)
        if config.colour:
            strength = 1 + config.colour * (2 * torch.rand(rows, 1, 1, 3, device=x.device) - 1)
            x = (x.view_as(pixels) * strength).view_as(x)
        if config.contrast or config.brightness:
            x = (x - 0.5) * (1 + around(rows, config.contrast, x)) + 0.5 + around(rows, config.brightness, x)
        return x


class AsItIs(nn.Module):
    """Changes nothing."""

    def __init__(self, config: NoAugmentationConfig) -> None:
        super().__init__()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """The same."""
        return x


AUGMENTATIONS: dict[type, Any] = {
    NoAugmentationConfig: AsItIs,
    SpecAugmentConfig: SpecAugment,
    LineAugmentConfig: LineAugment,
    ImageAugmentConfig: ImageAugment,
}


class Augmentation(nn.Module):
    """One of these while training, nothing otherwise."""

    def __init__(self, config: AugmentationConfig) -> None:
        super().__init__()
        self.change = AUGMENTATIONS[type(config)](config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, F), mask (B, T) → (B, T, F)."""
        out: Tensor = self.change(x, mask) if self.training else x
        return out
