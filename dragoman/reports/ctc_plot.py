"""Plot a forced alignment: the features, the aligned words and the CTC probability of any token."""

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

LETTER = 0.09  # width of a letter in inches
TOKEN_COLOUR, WORD_COLOUR = "#c2410c", "#2563eb"


def draw_ctc_alignments(predictor: Predictor, locations: Sequence[str], path: str) -> list[Path]:
    """One plot per file: features, CTC probabilities and the run's transcript, aligned."""
    config = media_codec(predictor)[1]
    files = []
    for file in read_media(predictor, locations):
        if isinstance(file, Fault):
            raise DataError(str(file))
        files.append(file)
    paths = []
    for number, (location, file, text) in enumerate(
        zip(locations, files, transcribe(predictor, locations, files), strict=True), 1
    ):
        emissions = ctc_emissions(predictor, [file])
        alignment = next(align_emissions(predictor, [file], [text], emissions))
        any_token = 1 - emissions.log_probabilities[0, :, PAD].float().exp().cpu().numpy()
        name = Path(location.rpartition("::")[2]).name
        size = require_transcriber(predictor).stride * file.frame_size
        own_path = numbered_path(path, number, len(locations))
        paths.append(
            draw_ctc_alignment(name, file, any_token, size, alignment, own_path, isinstance(config, LineImageConfig))
        )
    return paths


def draw_ctc_alignment(
    name: str,
    file: MediaFeatures,
    any_token: NDArray[Any],
    size: float,
    alignment: ForcedAlignment,
    path: Path,
    line: bool,
) -> Path:
    """The features above; below, the probability of any token at each CTC position (P,) and the aligned words."""
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
