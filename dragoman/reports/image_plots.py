"""Plot attention weights over an image, one panel per word (Xu et al. 2015)."""

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

from dragoman.analysis.attention import cross_attention_weights
from dragoman.data.media.images import COLOURS, PictureConfig
from dragoman.errors import ConfigError
from dragoman.inference.predictor import Predictor
from dragoman.models.captioner import CaptionerConfig
from dragoman.models.encoders.images import ImageEncoderConfig
from dragoman.reports.plots import INK, new_figure, save_plot

PANELS_PER_ROW = 6
MAX_TITLE = 20  # characters that fit over a panel


def draw_attention_over_image(
    image: NDArray[Any] | Tensor,
    words: Sequence[str],
    weights: Tensor,
    path: str | Path,
    title: str = "",
    name: str = "image",
) -> Path:
    """The image, then one panel per word: the brighter a region, the larger its attention weight.

    image (H, W, 3) has values from 0 to 1 or bytes. weights (T, h, w) has one grid per word, which is interpolated to
    the size of the image. Every panel has its own colour scale and states its largest weight.
    """
    pixels = np.asarray(image)
    assert pixels.ndim == 3, "an image has height, width and channels"
    assert weights.dim() == 3, "weights are (words, height, width)"
    assert len(words) == len(weights), "one grid of weights per word"
    height, width = pixels.shape[:2]
    stretched = F.interpolate(
        weights.detach()[:, None].float().cpu(), size=(height, width), mode="bicubic", align_corners=False
    )[:, 0].clamp(min=0)
    panels = len(words) + 1
    columns = min(panels, PANELS_PER_ROW)
    rows = -(-panels // columns)
    drawing = new_figure(1.9 * columns, 2.2 * rows + 0.7)
    drawing.get_layout_engine().set(h_pad=0.07)  # inches, so that titles do not touch the panels above
    if title:
        wrapped = textwrap.fill(title, 20 * columns)
        drawing.suptitle(wrapped, fontsize=11, color=INK)
    grid = drawing.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid:
        axes.axis("off")
    grid[0].imshow(pixels)
    grid[0].set_title(truncate(name), fontsize=9, color=INK)
    for axes, word, shades, own in zip(grid[1:], words, stretched, weights, strict=False):
        axes.imshow(pixels.mean(-1), cmap="gray")
        shown = axes.imshow(shades.numpy(), cmap="inferno", alpha=0.65, vmin=0.0, vmax=max(float(shades.max()), 1e-9))
        axes.set_title(f"{truncate(word)}  {float(own.max()):.0%}", fontsize=9, color=INK)
    if len(words):
        scale = drawing.colorbar(shown, ax=grid.tolist(), orientation="horizontal", aspect=50, shrink=0.8)
        scale.set_ticks([0.0, shown.norm.vmax], labels=["0", "maximum"])
        grid_size = f"{weights.shape[1]} × {weights.shape[2]} regions"
        scale.set_label(
            textwrap.fill(f"attention weight of one of {grid_size}; each title has the maximum", 20 * columns),
            fontsize=9, color=INK,
        )  # fmt: skip
        scale.ax.tick_params(labelsize=8, colors=INK)
    return save_plot(drawing, path)


def numbered_path(path: str | Path, number: int, count: int) -> Path:
    """The path of one of several plots: name-1.png, name-2.png, …; a single plot keeps its path."""
    return Path(path) if count == 1 else Path(path).with_stem(f"{Path(path).stem}-{number}")


def truncate(text: str) -> str:
    return text if len(text) <= MAX_TITLE else f"{text[: MAX_TITLE - 1]}…"


def as_grid(weights: Tensor) -> Tensor:
    """Attention (T, S) over the memory of a square image as one grid per word: (T, √S, √S)."""
    side = math.isqrt(weights.shape[1])
    assert weights.shape[1] == side**2, "the memory of a square image has a square number of entries"
    return weights.reshape(-1, side, side)


def mean_over_heads(layers: dict[str, Tensor], row: int) -> Tensor:
    """The mean over layers and heads of `cross_attention_weights` for one row of the batch: (T, h, w)."""
    return as_grid(torch.stack([weights[row].mean(0) for weights in layers.values()]).mean(0))


def draw_caption_attention(predictor: Predictor, locations: Sequence[str], path: str) -> list[Path]:
    """One plot per image: the predicted caption and the attention of each of its tokens."""
    codec, model = predictor.extractor, predictor.config.model
    if not (isinstance(model, CaptionerConfig) and isinstance(model.encoder, ImageEncoderConfig)):
        raise ConfigError(
            f'attention over images needs a run of task = "caption"; {predictor.run.folder} has '
            f'task = "{predictor.config.task}"'
        )
    assert isinstance(codec.config, PictureConfig)
    side, tokenizer, paths = codec.config.size, predictor.target_tokenizer, []
    codec.encode_batch(locations)  # raises DataError for an image that cannot be read
    predictions = predictor.predict(locations)
    for number, (location, prediction) in enumerate(zip(locations, predictions, strict=True), 1):
        rows = codec.encode(location)
        target = tokenizer.encode(prediction.text)
        batch = predictor.collator.collate([rows], [target]).to(predictor.device)
        weights = mean_over_heads(cross_attention_weights(predictor.model, batch), 0)[: len(target)]  # without <eos>
        own_path = numbered_path(path, number, len(locations))
        image = rows.reshape(side, side, COLOURS)
        name = Path(location.rpartition("::")[2]).name
        paths.append(
            draw_attention_over_image(image, tokenizer.pieces(target), weights, own_path, prediction.text, name)
        )
    return paths
