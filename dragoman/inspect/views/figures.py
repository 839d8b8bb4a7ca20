"""Figures by matplotlib (extra 'plots'): what all of them share."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.base import DataError, MissingExtraError, atomic_write, check_creatable

INK, PAPER = "#1f2933", "#ffffff"
BLUE, RED, GREEN, GREY = "#2f5bd8", "#b42318", "#15803d", "#c3cad5"
MAX_INCHES = 60.0  # per side
CELL = 0.24  # inches of a cell with a label


def new_figure(width: float, height: float) -> Any:
    """A matplotlib figure, made without pyplot's global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing", "matplotlib", "plots") from None
    return Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)


def suptitle(drawing: Any, text: str, size: int = 11) -> None:
    """The title of a figure, in as many lines as its width needs."""
    letters = max(16, int(drawing.get_figwidth() * 72 / (0.58 * size)))  # a letter is some 0.58 of its size wide
    drawing.suptitle(textwrap.fill(text, letters), color=INK, fontsize=size)


def check_plot_path(path: str | Path) -> None:
    """Raise an error before long work if no plot can be written to this path."""
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise DataError(f"{path}: found ending '{path.suffix}', expected .png, .svg or .pdf")
    check_creatable(path)
    new_figure(1, 1)


def save_plot(drawing: Any, path: str | Path) -> Path:
    """Write a figure as PNG, SVG or PDF, by the suffix of its path."""
    path = Path(path)
    check_plot_path(path)
    from matplotlib import rc_context
    from matplotlib.text import Text

    # Names and texts are shown as they are: two dollar signs in a name are not a formula. The context is for labels of
    # ticks that matplotlib makes when it draws.
    for text in drawing.findobj(Text):
        text.set_parse_math(False)
    context = rc_context({"text.parse_math": False})
    with atomic_write(path, with_folder=True) as beside, warnings.catch_warnings(), context:
        # matplotlib draws a box for a character that the font lacks; do not warn for each of them.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        drawing.savefig(beside, dpi=150)
    return path


def one_line_labels(labels: Sequence[str]) -> list[str]:
    """Labels of one line each; `save_plot` takes care that dollars are no formula."""
    return [label.replace("\n", "⏎") for label in labels]


def draw_heat(
    axes: Any, values: Any, rows: Sequence[str], columns: Sequence[str], *, signed: bool = False, top: float = 1.0
) -> Any:
    """A heat map whose labels do not overlap: letters stay upright, words lean, of many labels some are left out."""
    low = -top if signed else 0.0
    values = values.numpy() if hasattr(values, "numpy") else values  # a tensor
    image = axes.imshow(values, cmap="RdBu" if signed else "Blues", vmin=low, vmax=top, aspect="auto")
    for axis, labels, most in ((axes.xaxis, columns, 60), (axes.yaxis, rows, 90)):
        every = max(1, -(-len(labels) // most))
        axis.set_ticks(range(0, len(labels), every), one_line_labels(labels)[::every])
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, labelsize=9, colors=INK)
    # Words all lean; among letters only <eos> and the like.
    lean_all = any(len(label) > 2 for label in columns if not (label.startswith("<") and label.endswith(">")))
    for label in axes.get_xticklabels():
        if lean_all or len(label.get_text()) > 2:
            label.set(rotation=55, ha="left", va="bottom", rotation_mode="anchor")
    axes.spines[:].set_visible(False)
    return image


def chosen(items: Sequence[dict[str, Any]], layer: str | None) -> dict[str, Any]:
    """The item of a layer, by name or number from 1; by default the last."""
    names = [item["name"] for item in items]
    if layer is None:
        return items[-1]
    if layer.isdigit() and 1 <= int(layer) <= len(items):
        return items[int(layer) - 1]
    if layer in names:
        return items[names.index(layer)]
    raise DataError(f"--layer: found {layer!r}, expected 1 to {len(items)} or one of {', '.join(names)}")


def panel_size(rows: int, columns: int, panels: int = 1) -> tuple[float, float]:
    return (
        min(MAX_INCHES, panels * (1.6 + CELL * max(columns, 6))),
        min(MAX_INCHES, 1.6 + CELL * max(rows, 6)),
    )


def heat(values: Any, rows: Sequence[str], columns: Sequence[str], label: str = "", **options: Any) -> tuple[Any, Any]:
    """A figure with one heat map, and its axes."""
    drawing = new_figure(*panel_size(*values.shape))
    axes = drawing.subplots()
    image = draw_heat(axes, values, rows, columns, **options)
    if label:
        drawing.colorbar(image, ax=axes, shrink=0.6, label=label)
    return drawing, axes


def bars(labels: Sequence[str], values: Sequence[float], title: str, unit: str) -> Any:
    drawing = new_figure(7, min(MAX_INCHES, 1.2 + 0.26 * len(labels)))
    axes = drawing.subplots()
    draw_bars(axes, labels, values, [RED if value < 0 else BLUE for value in values])
    axes.set_xlabel(unit)
    axes.set_title(title, fontsize=11, color=INK)
    axes.tick_params(labelsize=9, colors=INK)
    return drawing


def draw_bars(axes: Any, labels: Sequence[str], values: Sequence[float], colours: Sequence[str]) -> None:
    axes.barh(range(len(labels)), values, color=colours)
    axes.set_yticks(range(len(labels)), one_line_labels(labels))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
