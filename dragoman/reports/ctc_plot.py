"""Where a transcript stands in its recording or line: features, the words, and how sure CTC is (FIELD A7, I1)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.analysis.ctc_alignment import (
    AlignedSpan,
    ForcedAlignment,
    MediaFeatures,
    align_emissions,
    ctc_emissions,
    media_codec,
    read_media,
    require_transcriber,
    transcribe,
)
from dragoman.data.examples import Fault
from dragoman.data.media.images import LineImageConfig
from dragoman.data.tokenizers.base import PAD
from dragoman.errors import DataError
from dragoman.inference.predictor import Predictor
from dragoman.reports.image_plots import numbered_path
from dragoman.reports.plots import INK, MAX_INCHES, PAPER, new_figure, save_plot

LETTER = 0.09  # inches that a letter over the picture takes
SPOKEN, WORD = "#c2410c", "#2563eb"


def draw_ctc_alignments(predictor: Predictor, places: Sequence[str], path: str) -> list[Path]:
    """One drawing a file: what the run reads there, when it is how sure of what, and what it writes."""
    config = media_codec(predictor)[1]
    opened = []
    for found in read_media(predictor, places):
        if isinstance(found, Fault):
            raise DataError(str(found))
        opened.append(found)
    out = []
    for number, (place, file, text) in enumerate(
        zip(places, opened, transcribe(predictor, places, opened), strict=True), 1
    ):
        emissions = ctc_emissions(predictor, [file])
        one = next(align_emissions(predictor, [file], [text], emissions))
        any_token = 1 - emissions.log_probabilities[0, :, PAD].float().exp().cpu().numpy()
        name = Path(place.rpartition("::")[2]).name
        size = require_transcriber(predictor).stride * file.frame_size
        own = numbered_path(path, number, len(places))
        out.append(draw_ctc_alignment(name, file, any_token, size, one, own, isinstance(config, LineImageConfig)))
    return out


def draw_ctc_alignment(
    name: str, file: MediaFeatures, any_token: NDArray[Any], size: float, one: ForcedAlignment, path: Path, line: bool
) -> Path:
    """The features, and below them the probability (P,) of any token at positions of a size, with what is written."""
    pixels = np.asarray(file.features, np.float32).T
    high, end = pixels.shape[0], pixels.shape[1] * file.frame_size
    known = [(word, place) for word, place in one.words if place is not None]
    width = min(MAX_INCHES, max(8.0, LETTER * sum(len(word) + 2 for word, _ in known)))
    height = min(width * high / pixels.shape[1], 6.0) if line else 2.4  # a line keeps its proportions
    drawing, _ = new_figure(width, height + 2.3)
    upper, lower = drawing.subplots(2, 1, sharex=True, height_ratios=[height, 1.3])
    title = textwrap.fill(f"{name}: {one.text}", int(width / LETTER))
    drawing.suptitle(title, fontsize=11, color=INK, parse_math=False)
    if line:
        upper.imshow(-pixels, cmap="gray", aspect="auto", extent=(0, end, high, 0), vmin=-255, vmax=0)
        upper.set_yticks([])
    else:
        upper.imshow(pixels, cmap="magma", aspect="auto", origin="lower", extent=(0, end, 0, high))
        upper.set_ylabel("mel filter", fontsize=9, color=INK)
    lower.plot((np.arange(len(any_token)) + 0.5) * size, any_token, color=SPOKEN, linewidth=1)
    for word, place in known:
        lower.axvspan(place.start, place.end, color=WORD, alpha=0.25, linewidth=0)
        for side in (place.start, place.end):
            upper.axvline(side, color=WORD if line else PAPER, linewidth=0.8, alpha=0.7)
        written(lower, word, place, 1.32, 9)
    if [piece for piece, _ in one.tokens] != [word for word, _ in one.words]:
        for piece, token in one.tokens:
            if token is not None:
                written(lower, piece, token, 1.06, 7)
    lower.set_ylim(0, 1.65)
    lower.set_yticks([0, 0.5, 1])
    lower.set_xlim(0, end)
    lower.set_xlabel(one.unit, fontsize=9, color=INK)
    lower.set_ylabel("probability\nof any token", fontsize=9, color=INK)
    for axes in (upper, lower):
        axes.tick_params(labelsize=8, colors=INK)
    return save_plot(drawing, path)


def written(axes: Any, text: str, place: AlignedSpan, height: float, size: int) -> None:
    """A text over the middle of its place."""
    middle = (place.start + place.end) / 2
    axes.text(middle, height, text, fontsize=size, color=INK, ha="center", va="bottom", parse_math=False)
