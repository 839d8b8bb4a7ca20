"""What is wrong with a drawn figure, by matplotlib's own boxes: texts cut off, texts over each other, raw markup."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

TOUCH = 1.0  # pixels that the boxes of two texts may share: they are a little larger than their letters
MARKUP = re.compile(r"\\[a-z]+|\$|\^\{|\bnan\b|\bNone\b|object at 0x")


def faults(drawing: Any) -> list[str]:
    """Every fault of a figure as a line; the figure is drawn once more, and only texts that are really drawn count."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    drawn: list[Any] = []
    plain = Text.draw

    def draw(text: Any, renderer: Any, *more: Any, **options: Any) -> None:
        if text.get_visible() and text.get_text().strip():
            drawn.append(text)
        plain(text, renderer, *more, **options)

    canvas = FigureCanvasAgg(drawing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", draw)
        canvas.draw()  # lays the figure out first
    renderer, frame = canvas.get_renderer(), drawing.bbox
    boxes = [(text.get_text(), corners(text, renderer)) for text in dict.fromkeys(drawn)]
    found = [f"no text at all: {drawing}"] if not boxes else []
    for name, box in boxes:
        if MARKUP.search(name):
            found.append(f"raw markup: {name!r}")
        if (box < -TOUCH).any() or (box > np.array([frame.width, frame.height]) + TOUCH).any():
            found.append(f"outside of the frame: {name!r} {box.round().tolist()} of {frame.width:g} x {frame.height:g}")
    found += [f"over each other: {one!r} and {other!r}" for (one, a), (other, b) in combinations(boxes, 2)
              if overlap(a, b)]  # fmt: skip
    return found


def corners(text: Any, renderer: Any) -> NDArray[np.float64]:
    """The four corners (4, 2) of a text, or of the box around it, in pixels; leaning texts have leaning boxes."""
    around = text.get_bbox_patch()
    box = (around or text).get_window_extent(renderer)
    middle, angle = np.array([box.x0 + box.x1, box.y0 + box.y1]) / 2, math.radians(text.get_rotation())
    if angle % (math.pi / 2) and around is None:
        text.set_rotation(0)
        flat = text.get_window_extent(renderer)
        text.set_rotation(math.degrees(angle))
        half = np.array([flat.width, flat.height]) / 2
    else:
        half, angle = np.array([box.width, box.height]) / 2, 0.0
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    return middle + (np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * half) @ turn


def overlap(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Whether two rectangles share more than TOUCH: no side of either has them apart."""
    for box in (one, other):
        for side in (box[1] - box[0], box[2] - box[1]):
            along = side / max(float(np.hypot(*side)), 1e-9)
            a, b = one @ along, other @ along
            if min(a.max(), b.max()) - max(a.min(), b.min()) <= TOUCH:
                return False
    return True


@contextmanager
def checked_figures() -> Iterator[dict[str, list[str]]]:
    """Inside the block pictures are not written but checked: file name → its faults."""
    from matplotlib.figure import Figure

    seen: dict[str, list[str]] = {}

    def savefig(drawing: Any, path: Any, **options: Any) -> None:
        Path(path).touch()
        seen[Path(path).name.removeprefix(".").replace(".part", "")] = faults(drawing)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        yield seen
