"""Plots of texts that matplotlib would read as formulas or leave out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from dragoman.data.tokenizers.characters import CharactersConfig, CharacterTokenizer
from dragoman.inference.align.attention import AttentionMap, token_labels
from dragoman.inspect.measure.calibration import draw_reliability
from dragoman.inspect.measure.cost import GrowthExponents, LayerCost, draw_costs
from dragoman.inspect.measure.run_summary import draw_curves
from dragoman.inspect.views.figures import draw_heat, new_figure, suptitle
from dragoman.inspect.views.media_plots import draw_attention
from dragoman.scoring.calibration import reliability

matplotlib = pytest.importorskip("matplotlib")

NAMES = ["runs/$\\frac$ and $b^", "_hidden"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_drawn_as_they_are(name: str, tmp_path: Path) -> None:
    shown: list[str] = []
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        for number, path in enumerate(
            (
                draw_curves([{"step": 1, "loss": 2.0}], tmp_path / "0.svg", loss=name, differs=name, title=name),
                draw_reliability({name: reliability([0.5, 0.9], [True, False])}, tmp_path / "2.svg", name),
                draw_attention(
                    [AttentionMap([name, "b"], ["a", name], {"a": torch.ones(1, 2, 2) / 2})], tmp_path / "3.svg", name
                ),
            )
        ):
            svg = path.read_text(encoding="utf-8")
            shown.append(svg)
            assert svg.count(name) >= 2, number
    assert all("<svg" in svg for svg in shown)


def test_logarithmic_axes_show_plain_numbers(tmp_path: Path) -> None:
    costs = [LayerCost("$x$", length, 1e-3 * length, 1000 * length) for length in (64, 128, 256)]
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        svg = draw_costs(costs, [GrowthExponents("$x$", 1.0, 1.0, 1.0, 1.0)], tmp_path / "a.svg").read_text()
    assert "mathdefault" not in svg
    assert ">$x$ (n^1.0)<" in svg
    assert ">100<" in svg


def test_labels_do_not_touch_and_titles_fit() -> None:
    """Among letters <sos> ran into its neighbour, and long titles of narrow figures were cut off at both sides."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    labels = ["<sos>", *"narozhit", "<eos>"]
    drawing = new_figure(1.6 + 0.24 * len(labels), 3)
    suptitle(drawing, "decoder.stack.cells.0 (LSTM): gates and states of the 20 units that vary most")
    draw_heat(drawing.subplots(), torch.zeros(4, len(labels)), [*"abcd"], labels)
    canvas = FigureCanvasAgg(drawing)
    canvas.draw()
    (axes,) = drawing.axes
    boxes = [tick.get_window_extent(canvas.get_renderer()) for tick in axes.get_xticklabels()]
    leaning = [tick.get_rotation() for tick in axes.get_xticklabels()]
    assert leaning == [55, *[0] * 8, 55]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes[1:-1]))
    title = drawing.get_suptitle()
    assert "\n" in title
    extent = drawing._suptitle.get_window_extent(canvas.get_renderer())
    assert extent.x0 >= 0
    assert extent.x1 <= drawing.bbox.width


def test_the_attention_picture_shows_unknown_characters_and_both_texts(tmp_path: Path) -> None:
    tokenizer = CharacterTokenizer.train(CharactersConfig(), ["abc"])
    assert token_labels(tokenizer, "a é", tokenizer.encode("a é")) == ["a", "␣", "é"]
    seen = AttentionMap(("a", "é"), ("A",), {"decoder.attention": torch.ones(1, 1, 2) / 2}, ("aé", "A"))
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        svg = draw_attention([seen], tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "aé → A" in svg
