"""The table of views: its entries, the pages that draw them, and their figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.inspect.views.figures import bars, save_plot
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.table import VIEWS, ViewEntry
from dragoman.inspect.views.view import View
from dragoman.web.page import asset
from tests.conftest import TrainedFolder, call

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "inspect.md"


def toy_view(subject: Subject) -> View | None:
    numbers = torch.tensor([1.0, 2.0])
    return View("toy", "Toy", "The words of the toy.", {"numbers": numbers, "beam": subject.options.beam})


def draw_toy(view: View, layer: str | None) -> Any:
    return bars(["one", "two"], view.data["numbers"].tolist(), view.title, "toys")


def test_a_new_view_is_one_file_and_one_line(inside: TrainedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VIEWS, "toy", ViewEntry("a toy", f"{__name__}:toy_view,draw_toy"))  # type: ignore[arg-type]
    result = call("inspect", inside.run, "abc", "--beam", 2, "--view", "toy", "-o", "toy.json")
    assert result.code == 0, result.err
    (view,) = json.loads(Path("toy.json").read_text(encoding="utf-8"))["views"]
    assert view == {"kind": "toy", "title": "Toy", "about": "The words of the toy.",
                    "data": {"numbers": [1.0, 2.0], "beam": 2}}  # fmt: skip
    assert call("inspect", inside.run, "abc", "--view", "toy", "-o", "toy.svg").code == 0
    assert "toys" in Path("toy.svg").read_text(encoding="utf-8")
    assert call("inspect", inside.run, "abc", "--view", "toy", "-o", "toy.html").code == 0
    assert '"toy"' in Path("toy.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_is_drawn_in_help_page_and_documentation(name: str) -> None:
    view = VIEWS[name]
    assert callable(view.compute)
    assert not view.has_figure or callable(view.draw)
    assert re.search(rf"\b{name}: draw\w+", asset("modules/inspect.js"))
    assert f"\n| `{name}` | " in HOW_TO.read_text(encoding="utf-8")
    assert f"{name:<12}{view.about}" in call("inspect", "--help").out


def test_the_axis_of_gradients_has_numbers(tmp_path: Path) -> None:
    """It had $\\mathdefault{10^{0}}$: powers of ten are formulas, and labels are shown as they are written."""
    flow = {"name": "encoder", "kind": "LSTM", "slope": -0.3, "state": torch.logspace(0, -6, 7), "bound": None,
            "gates": None}  # fmt: skip
    drawing = VIEWS["gradients"].draw(View("gradients", "", "", {"flows": [flow]}), None)
    drawn = save_plot(drawing, tmp_path / "flow.svg").read_text(encoding="utf-8")
    assert "mathdefault" not in drawn
    assert "<!-- 0.01 -->" in drawn


def test_ctc_has_a_figure_of_its_path(tmp_path: Path) -> None:
    """It was refused, with the words that the run has no such view."""
    data = {"path": ["blank", "a", "a", "b"], "probabilities": torch.full((4,), 0.5), "blank": "blank",
            "text": ["a", "b"]}  # fmt: skip
    drawing = VIEWS["ctc"].draw(View("ctc", "CTC", "", data), None)
    assert [label.get_text() for label in drawing.axes[0].get_xticklabels()] == ["–", "a", "a", "b"]
    assert "collapsed: a b" in save_plot(drawing, tmp_path / "ctc.svg").read_text(encoding="utf-8")
