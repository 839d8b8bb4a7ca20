"""`attention`: pictures of it over texts and images, and forced alignments by CTC over recordings."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from dragoman.base import ConfigError, DataError
from dragoman.data import Fault
from dragoman.data.media import COLOURS, LineImageConfig, PictureConfig
from dragoman.data.tokenizers import PAD
from dragoman.inference import Predictor, UnseenInputs, load_predictor
from dragoman.inference.align import (
    AlignedSpan,
    AttentionMap,
    MediaFeatures,
    align_emissions,
    attention_map,
    cross_attention_weights,
    ctc_emissions,
    media_codec,
    read_media,
    require_transcriber,
    transcribe,
)
from dragoman.inspect.options import AttentionOptions
from dragoman.inspect.views.figures import (
    INK,
    MAX_INCHES,
    PAPER,
    check_plot_path,
    draw_heat,
    new_figure,
    save_plot,
    suptitle,
)
from dragoman.models import CaptionerConfig, Transcriber
from dragoman.models.encoders import ImageEncoderConfig

PANELS_PER_ROW = 6
MAX_TITLE = 20  # characters that fit over a panel
LETTER = 0.09  # width of a letter in inches
TOKEN_COLOUR, WORD_COLOUR = "#c2410c", "#2563eb"


class AttentionPictures(NamedTuple):
    """The files, and the texts with characters or words that training did not have."""

    paths: list[Path]
    unseen: UnseenInputs


def attention(
    run: str | Path, texts: Sequence[str], path: str | Path, options: AttentionOptions | None = None
) -> AttentionPictures:
    """Draw where a run looks for each output token, for texts in one picture, or for files in one picture each."""
    options, unseen = options or AttentionOptions(), UnseenInputs()
    check_plot_path(path)
    predictor = load_predictor(run)
    usable = [text for text in texts if text.strip()]
    if not usable:
        raise DataError("found only empty text, expected text to draw attention for")
    if predictor.reads_files:
        if options.tag is not None:
            task = predictor.run.task.name
            raise ConfigError(f'--tag goes with texts; {predictor.run.folder} has task = "{task}"')
        draw = draw_ctc_alignments if isinstance(predictor.model, Transcriber) else draw_caption_attention
        return AttentionPictures(draw(predictor, usable, str(path)), unseen)
    read = list(predictor.read_as(usable, options.tag))
    for number, text in enumerate(read, 1):
        if surfaces := predictor.unseen(text):
            unseen.add(number, surfaces)
    return AttentionPictures([draw_attention([attention_map(predictor, text) for text in read], path)], unseen)


def draw_attention(alignments: Sequence[AttentionMap], path: str | Path, title: str = "") -> Path:
    """One panel per text: output tokens down, source tokens across, one scale of colours from 0 to 1 for all."""
    columns = min(len(alignments), 3)
    rows = -(-len(alignments) // columns)
    widest = max(len(alignment.source) for alignment in alignments)
    tallest = max(len(alignment.target) for alignment in alignments)
    drawing = new_figure(
        min(MAX_INCHES, columns * (1.6 + 0.3 * max(widest, 8)) + 0.8),
        min(MAX_INCHES, rows * (1.7 + 0.3 * max(tallest, 5)) + 0.4),
    )
    layer = list(alignments[0].layers)[-1]
    heads = alignments[0].layers[layer].shape[0]
    heads_text = ", mean over its heads" if heads > 1 else ""
    suptitle(drawing, title or f"Where the model looks for each output token ({layer}{heads_text})", 10)
    image = None
    for index, alignment in enumerate(alignments):
        axes = drawing.add_subplot(rows, columns, index + 1)
        image = draw_heat(axes, alignment.mean().numpy(), alignment.target, alignment.source)
        axes.set_xlabel("input", fontsize=9, color=INK)
        axes.set_ylabel("output", fontsize=9, color=INK)
        if any(alignment.texts):
            letters = max(16, int(13 * drawing.get_figwidth() / columns))
            shown = " → ".join(textwrap.shorten(text, 80, placeholder=" …") for text in alignment.texts)
            axes.set_title(textwrap.fill(shown, letters), fontsize=10, color=INK, pad=6)
    drawing.colorbar(image, ax=drawing.axes, shrink=0.7, label="attention weight")
    return save_plot(drawing, path)


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
    columns = min(len(words) + 1, PANELS_PER_ROW)
    rows = -(-(len(words) + 1) // columns)
    drawing = new_figure(1.9 * columns, 2.2 * rows + 0.7)
    drawing.get_layout_engine().set(h_pad=0.07)  # inches, so that titles do not touch the panels above
    if title:
        drawing.suptitle(textwrap.fill(title, 20 * columns), fontsize=11, color=INK)
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
        regions = f"{weights.shape[1]} × {weights.shape[2]} regions"
        label = f"attention weight of one of {regions}; each title has the maximum"
        scale.set_label(textwrap.fill(label, 20 * columns), fontsize=9, color=INK)
        scale.ax.tick_params(labelsize=8, colors=INK)
    return save_plot(drawing, path)


def numbered_path(path: str, number: int, count: int) -> Path:
    """The path of one of several plots: name-1.png, name-2.png, …; a single plot keeps its path."""
    return Path(path) if count == 1 else Path(path).with_stem(f"{Path(path).stem}-{number}")


def truncate(text: str) -> str:
    return text if len(text) <= MAX_TITLE else f"{text[: MAX_TITLE - 1]}…"


def mean_over_heads(layers: dict[str, Tensor], row: int) -> Tensor:
    """The mean over layers and heads of `cross_attention_weights` for one row: a grid per word, (T, h, w)."""
    weights = torch.stack([weights[row].mean(0) for weights in layers.values()]).mean(0)  # (T, S)
    side = math.isqrt(weights.shape[1])
    assert weights.shape[1] == side**2, "the memory of a square image has a square number of entries"
    return weights.reshape(-1, side, side)


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


def draw_ctc_alignments(predictor: Predictor, locations: Sequence[str], path: str) -> list[Path]:
    """One plot per file: features, CTC probabilities and the run's transcript, aligned."""
    files = []
    for file in read_media(predictor, locations):
        if isinstance(file, Fault):
            raise DataError(str(file))
        files.append(file)
    texts = transcribe(predictor, locations, files)
    paths = []
    for number, (location, file, text) in enumerate(zip(locations, files, texts, strict=True), 1):
        name = Path(location.rpartition("::")[2]).name
        own_path = numbered_path(path, number, len(locations))
        paths.append(draw_ctc_alignment(predictor, name, file, text, own_path))
    return paths


def draw_ctc_alignment(predictor: Predictor, name: str, file: MediaFeatures, text: str, path: Path) -> Path:
    """The features above; below, the probability of any token at each CTC position and the aligned words."""
    line = isinstance(media_codec(predictor)[1], LineImageConfig)
    emissions = ctc_emissions(predictor, [file])
    alignment = next(align_emissions(predictor, [file], [text], emissions))
    any_token = 1 - emissions.log_probabilities[0, :, PAD].float().exp().cpu().numpy()
    size = require_transcriber(predictor).stride * file.frame_size
    pixels = np.asarray(file.features, np.float32).T
    high, end = pixels.shape[0], pixels.shape[1] * file.frame_size
    aligned = [(word, span) for word, span in alignment.words if span is not None]
    width = min(MAX_INCHES, max(8.0, LETTER * sum(len(word) + 2 for word, _ in aligned)))
    height = min(width * high / pixels.shape[1], 6.0) if line else 2.4  # a line image keeps its proportions
    drawing = new_figure(width, height + 2.3)
    upper, lower = drawing.subplots(2, 1, sharex=True, height_ratios=[height, 1.3])
    title = textwrap.fill(f"{name}: {alignment.text}", int(width / LETTER))
    drawing.suptitle(title, fontsize=11, color=INK)
    if line:
        upper.imshow(-pixels, cmap="gray", aspect="auto", extent=(0, end, high, 0), vmin=-255, vmax=0)
        upper.set_yticks([])
    else:
        upper.imshow(pixels, cmap="magma", aspect="auto", origin="lower", extent=(0, end, 0, high))
        upper.set_ylabel("mel filter", fontsize=9, color=INK)
    lower.plot((np.arange(len(any_token)) + 0.5) * size, any_token, color=TOKEN_COLOUR, linewidth=1)
    for word, span in aligned:
        lower.axvspan(span.start, span.end, color=WORD_COLOUR, alpha=0.25, linewidth=0)
        for side in (span.start, span.end):
            upper.axvline(side, color=WORD_COLOUR if line else PAPER, linewidth=0.8, alpha=0.7)
        write_over(lower, word, span, 1.32, 9)
    if [piece for piece, _ in alignment.tokens] != [word for word, _ in alignment.words]:
        for piece, token in alignment.tokens:
            if token is not None:
                write_over(lower, piece, token, 1.06, 7)
    lower.set_ylim(0, 1.65)
    lower.set_yticks([0, 0.5, 1])
    lower.set_xlim(0, end)
    lower.set_xlabel(alignment.unit, fontsize=9, color=INK)
    lower.set_ylabel("probability\nof any token", fontsize=9, color=INK)
    for axes in (upper, lower):
        axes.tick_params(labelsize=8, colors=INK)
    return save_plot(drawing, path)


def write_over(axes: Any, text: str, span: AlignedSpan, height: float, size: int) -> None:
    middle = (span.start + span.end) / 2
    axes.text(middle, height, text, fontsize=size, color=INK, ha="center", va="bottom")
