"""Where a caption's words look in their picture (FIELD A4, I1)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from dragoman.reports.plots import INK, new_figure, save_plot

PANELS_PER_ROW = 6  # panels in a row
MAX_TITLE = 20  # letters of a word that fit over its panel


def draw_attention_over_image(
    image: NDArray[Any] | Tensor,
    words: Sequence[str],
    weights: Tensor,
    path: str | Path,
    title: str = "",
    name: str = "the picture",
) -> Path:
    """The picture, then one panel a word: the brighter a place, the more the word looked at it.

    image (H, W, 3), numbers from 0 to 1 or bytes; weights (T, h, w), one grid a word, which is stretched over the
    picture. Every panel has a scale of its own, and says its largest weight; `name` stands over the picture.
    """
    pixels = np.asarray(image)
    assert pixels.ndim == 3, "a picture has height, width and colours"
    assert weights.dim() == 3, "weights are (words, height, width)"
    assert len(words) == len(weights), "one grid of weights a word"
    height, width = pixels.shape[:2]
    stretched = F.interpolate(
        weights.detach()[:, None].float().cpu(), size=(height, width), mode="bicubic", align_corners=False
    )[:, 0].clamp(min=0)
    panels = len(words) + 1
    columns = min(panels, PANELS_PER_ROW)
    rows = -(-panels // columns)
    drawing, _ = new_figure(1.9 * columns, 2.2 * rows + 0.7)
    drawing.get_layout_engine().set(h_pad=0.07)  # inches; without them words touch the panels above
    if title:
        wrapped = textwrap.fill(title, 20 * columns)  # letters that fit over a panel
        drawing.suptitle(wrapped, fontsize=11, color=INK, parse_math=False)
    grid = drawing.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid:
        axes.axis("off")
    grid[0].imshow(pixels)
    grid[0].set_title(truncate(name), fontsize=9, color=INK, parse_math=False)
    for axes, word, shades, own in zip(grid[1:], words, stretched, weights, strict=False):
        axes.imshow(pixels.mean(-1), cmap="gray")
        shown = axes.imshow(shades.numpy(), cmap="inferno", alpha=0.65, vmin=0.0, vmax=max(float(shades.max()), 1e-9))
        axes.set_title(f"{truncate(word)}  {float(own.max()):.0%}", fontsize=9, color=INK, parse_math=False)
    if len(words):
        scale = drawing.colorbar(shown, ax=grid.tolist(), orientation="horizontal", aspect=50, shrink=0.8)
        scale.set_ticks([0.0, shown.norm.vmax], labels=["0", "the most"])
        places = f"{weights.shape[1]} × {weights.shape[2]} places"
        scale.set_label(
            textwrap.fill(f"share of a word's attention at one of {places}; the most stands over it", 20 * columns),
            fontsize=9, color=INK,
        )  # fmt: skip
        scale.ax.tick_params(labelsize=8, colors=INK)
    return save_plot(drawing, path)


def numbered_path(path: str | Path, number: int, count: int) -> Path:
    """Where the drawing with a number goes: seen-1.png, seen-2.png, … if there are several."""
    return Path(path) if count == 1 else Path(path).with_stem(f"{Path(path).stem}-{number}")


def truncate(text: str) -> str:
    """What fits over a panel."""
    return text if len(text) <= MAX_TITLE else f"{text[: MAX_TITLE - 1]}…"


def as_grid(weights: Tensor) -> Tensor:
    """Attention (T, S) over the memory of a square picture as one grid a word: (T, √S, √S)."""
    side = math.isqrt(weights.shape[1])
    assert weights.shape[1] == side**2, "the memory of a square picture has a square grid of places"
    return weights.reshape(-1, side, side)


def mean_over_heads(layers: dict[str, Tensor], row: int) -> Tensor:
    """What `inspection.watch.memory_attention` saw of one row, the mean over layers and heads: (T, h, w)."""
    return as_grid(torch.stack([weights[row].mean(0) for weights in layers.values()]).mean(0))
