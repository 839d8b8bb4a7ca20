"""Every figure that the project draws, once: no text cut off, none over another, no raw markup."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dragoman
from dragoman.auto.compare import VIEWS as COMPARISON_VIEWS
from dragoman.inference.align.attention import AttentionMap
from dragoman.inspect.measure.calibration import draw_reliability, draw_risk_coverage
from dragoman.inspect.measure.cost import GrowthExponents, LayerCost, draw_costs
from dragoman.inspect.measure.run_summary import draw_curves
from dragoman.inspect.measure.score_plots import (
    draw_buckets,
    draw_comparison,
    draw_edit_table,
    draw_learning_curve,
    draw_predictions,
)
from dragoman.inspect.views.figures import new_figure
from dragoman.inspect.views.media_plots import attention, draw_attention, draw_attention_over_image
from dragoman.inspect.views.table import VIEWS
from dragoman.inspect.views.view import listed
from dragoman.scoring.buckets import BucketScore
from dragoman.scoring.calibration import RiskPoint, reliability
from dragoman.scoring.edit import align_edits
from dragoman.scoring.learning_curve import Curve, CurvePoint, Gain
from dragoman.scoring.registry import select_metrics
from dragoman.scoring.significance import BaselineComparison, SystemScore
from dragoman.web.page import asset, page_data
from tests.conftest import call
from tests.figures import checked_figures, faults
from tests.web.test_every_task import CASES, MEDIA, Pages, pages  # noqa: F401

pytest.importorskip("matplotlib")

ROOM = Path(dragoman.__file__).parent
GERMAN, ENGLISH = (
    ["ein", "sehr", "kleiner", "schwarzer", "Hund", "läuft", "über", "die", "Straße"],
    ["a", "very", "small", "black", "dog"],
)


def attention_map(source: list[str], target: list[str]) -> AttentionMap:
    weights = torch.rand(2, len(target), len(source), generator=torch.Generator().manual_seed(1)).softmax(-1)
    return AttentionMap(source, target, {"decoder.blocks.5.cross": weights}, (" ".join(source), " ".join(target)))


def system_scores() -> list[SystemScore]:
    systems, found = ("runs/lstm-with-attention", "runs/transformer", "runs/phrases"), []
    for metric, base in (("bleu", 0.3), ("chrf", 0.5), ("wer", 0.4), ("ter", 0.6)):
        for number, system in enumerate(systems):
            score = base + 0.02 * number
            versus = BaselineComparison(0.02 * number, True, 0.03, 0.0001 * number) if number else None
            found.append(SystemScore(metric, system, score, (score - 0.03, score + 0.03), versus, ""))
    return found


def learning_curve() -> Curve:
    sizes = (1000, 2000, 4000, 8000)
    drawn = np.array([[0.2, 0.3, 0.38, 0.44], [0.21, 0.31, 0.37, 0.45], [0.19, 0.3, 0.39, 0.43]])
    points = [CurvePoint(size, float(score), (score - 0.02, score + 0.02), "transformer", size == 8000)
              for size, score in zip(sizes, drawn.mean(0), strict=True)]  # fmt: skip
    return Curve("bleu", "words", 200, points, [Gain(8000, 0.05, (0.03, 0.07))], Path(), drawn)


def drawn_curves(path: Path) -> Path:
    rows = [{"step": step, "loss": 5 / step} for step in range(1, 40)]
    valid = [{"step": step, "valid": {"loss": 6 / step}} for step in range(4, 40, 4)]
    return draw_curves([*rows, *valid], path, "loss per target token", "with dropout and smoothing", "runs/my")


BUCKETS = [BucketScore(f"{low}–{low + 9}", 1234, 0.4 - low / 200, (0.3 - low / 200, 0.45)) for low in range(1, 60, 10)]
CHANCES = np.linspace(0.02, 0.98, 60)
LAYERS = ("self-attention", "recurrent (LSTM)", "convolution of 3")
# By function: what draws it to a path. Those that need a run are drawn below.
DRAWN: dict[str, Callable[[Path], Any]] = {
    "draw_attention": lambda path: draw_attention(
        [attention_map([*GERMAN, "<eos>"], [*ENGLISH, "<eos>"]), attention_map([*"Hund", "<eos>"], ["<unk>", "dog"])],
        path,
    ),
    "draw_attention_over_image": lambda path: draw_attention_over_image(
        np.random.default_rng(1).random((16, 16, 3)), [*ENGLISH, "<eos>"], torch.rand(6, 4, 4), path,
        "a very small black dog runs over the street and barks at everybody that it meets there", "a-long-name.png",
    ),
    "draw_buckets": lambda path: draw_buckets(BUCKETS, select_metrics(("bleu",), "words")["bleu"], path, "words"),
    "draw_comparison": lambda path: draw_comparison(
        system_scores(), select_metrics(("bleu", "chrf", "wer", "ter"), "words"), path
    ),
    "draw_costs": lambda path: draw_costs(
        [LayerCost(name, length, 1e-5 * length**power, 900 * length)
         for power, name in enumerate(LAYERS) for length in (64, 128, 256, 512, 1024, 2048, 4096)],
        [GrowthExponents(name, 1.0, 1.0, 1.0, 1.0) for name in LAYERS], path,
    ),
    "draw_curves": drawn_curves,
    "draw_edit_table": lambda path: draw_edit_table(align_edits("INTENTION", "EXECUTION", substitution=2), path),
    "draw_learning_curve": lambda path: draw_learning_curve(learning_curve(), path),
    "draw_predictions": lambda path: draw_predictions(
        np.stack([CHANCES**2, -CHANCES], 1), np.stack([CHANCES, CHANCES * 1e4], 1), path
    ),
    "draw_reliability": lambda path: draw_reliability(
        {name: reliability(CHANCES, CHANCES > 0.4) for name in ("tokens, as trained", "outputs, calibrated")},
        path, "my",
    ),
    "draw_risk_coverage": lambda path: draw_risk_coverage(
        [RiskPoint(1 - share, share, 0.4 * share) for share in CHANCES], path, "runs/my"
    ),
}  # fmt: skip
WITH_RUNS = {"draw_ctc_alignment"}  # by `attention` of a run that transcribes


def writers() -> Iterator[str]:
    """Every function that draws to a path."""
    for file in ROOM.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if "save_plot(" in file.read_text() else ():
            if isinstance(node, ast.FunctionDef) and node.name.startswith("draw_"):
                calls = (call.func for call in ast.walk(node) if isinstance(call, ast.Call))
                if any(isinstance(call, ast.Name) and call.id == "save_plot" for call in calls):
                    yield node.name


def test_every_function_that_draws_is_drawn() -> None:
    assert set(writers()) == {*DRAWN, *WITH_RUNS}


@pytest.mark.parametrize("name", DRAWN)
def test_texts_of_a_figure_fit(name: str, tmp_path: Path) -> None:
    with checked_figures() as seen:
        DRAWN[name](tmp_path / f"{name}.png")
    assert seen == {f"{name}.png": []}


# By view: a run that has it, and all that it can draw.
VIEWS_OF = {"attention": "transformer", "beam": "transformer", "next": "transformer", "positions": "transformer",
            "whatif": "transformer", "ctc": "joint", "tables": "joint", "states": "tagger", "gradients": "tagger",
            "labels": "tagger", "surprise": "n-grams", "receptive": "transformer",
            "inside": "transformer", "equations": "tagger"}  # fmt: skip


def test_every_view_with_a_figure_is_drawn() -> None:
    assert set(VIEWS_OF) == {name for name, view in VIEWS.items() if view.has_figure}


@pytest.mark.parametrize("kind", VIEWS_OF)
def test_texts_of_a_view_fit(pages: Pages, kind: str) -> None:  # noqa: F811
    assert not faults(pages(VIEWS_OF[kind]).figure(kind))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *MEDIA])
def test_texts_of_every_view_of_every_task_fit(pages: Pages, name: str) -> None:  # noqa: F811
    found = pages(name)
    drawn = {view.kind: faults(found.figure(view.kind)) for view in found.views if VIEWS[view.kind].has_figure}
    assert not any(drawn.values()), drawn


@pytest.mark.parametrize("name", ["joint", "captions"])
def test_texts_fit_beside_recordings_and_pictures(pages: Pages, name: str, tmp_path: Path) -> None:  # noqa: F811
    with checked_figures() as seen:
        attention(pages(name).subject.loaded.run.folder, [MEDIA[name]], str(tmp_path / "a.png"))
    assert seen == {"a.png": []}


def test_the_check_finds_faults() -> None:
    drawing = new_figure(3, 2)
    axes = drawing.subplots()
    axes.text(0.5, 0.5, "one")
    axes.text(0.52, 0.5, "two")
    axes.set_title("far too long for a figure of three inches, so both ends are cut off")
    axes.set_xlabel(r"\mathdefault{10}")
    found = "\n".join(faults(drawing))
    for fault in ("over each other: 'one' and 'two'", "outside of the frame: 'far too", "raw markup: '\\\\mathdefault"):
        assert fault in found
    assert faults(new_figure(1, 1))[0].startswith("no text")


def test_leaning_labels_may_stand_close() -> None:
    drawing = new_figure(3, 3)
    axes = drawing.subplots()
    axes.set_xticks([0.4, 0.5], ["leaning labels", "stand close"], rotation=55, ha="left", rotation_mode="anchor")
    assert not faults(drawing)
    axes.set_xticks([0.4, 0.42], ["leaning labels", "stand close"])
    assert faults(drawing)


def test_predicted_against_true_values(pages: Pages, tmp_path: Path) -> None:  # noqa: F811
    run, plot = pages("series").subject.loaded.run.folder, tmp_path / "values.svg"
    rows = [("0.1 0.2 0.3", 0.5), ("0.3 0.1 -0.2", -1.25), ("1.5 0.1 0.2", 2.0)]
    (tmp_path / "test.tsv").write_text("".join(f"{source}\t{value}\n" for source, value in rows))
    result = call("evaluate", run, tmp_path / "test.tsv", "--plot", plot, "--json")
    assert result.code == 0, result.err
    scores = json.loads(result.out)
    true, predicted = (np.array(scores["values"][name])[:, 0] for name in ("true", "predicted"))
    np.testing.assert_allclose(true, [value for _, value in rows])
    own = [answer.value for answer in pages("series").subject.loaded.predict([source for source, _ in rows])]
    np.testing.assert_allclose(predicted, np.array(own).reshape(-1), atol=1e-5)
    assert scores["mse"] == pytest.approx(float(((true - predicted) ** 2).mean()), rel=1e-4)
    error, variance = ((true - predicted) ** 2).mean(), true.var()
    assert f"R² = {1 - error / variance:.3f}".replace("-", "−") in plot.read_text(encoding="utf-8")
    refused = call("evaluate", pages("tagger").subject.loaded.run.folder, tmp_path / "test.tsv", "--plot", plot)
    assert refused.code == 2
    assert "--plot is for numbers" in refused.err


@pytest.mark.parametrize("name", ["transformer", "joint"])
def test_contexts_are_sums_of_weights_times_values(pages: Pages, name: str) -> None:  # noqa: F811
    """c = Σ α·h of every step and head, by loops over plain numbers of the .json."""
    found = pages(name)
    for layer in listed(found.view("inside").data)["layers"]:
        heads, rows = len(layer["weights"]), len(layer["weights"][0])
        for head in range(heads):
            for row in range(rows):
                weights, values = layer["weights"][head][row], layer["value"][head]
                assert sum(weights) == pytest.approx(1.0, abs=1e-5)
                context = np.zeros(len(values[0]))
                for weight, value in zip(weights, values, strict=True):
                    context += weight * np.array(value)
                np.testing.assert_allclose(layer["context"][head][row], context, atol=1e-5)
    drawn = {text.get_text() for text in found.figure("inside", "1").axes[2].texts}
    first = found.view("inside").data["layers"][0]["context"][0][0]
    assert {f"{float(value):.2f}".replace("-", "−") for value in first[:12]} <= drawn


def test_lattices_show_infinity_an_end_and_no_path_over_numbers(pages: Pages) -> None:  # noqa: F811
    """Forbidden cells had the lowest finite score, and the path ran over the numbers."""
    found = pages("joint")
    (axes,) = found.figure("tables", "CTC lattice").axes
    table = next(one for one in found.view("tables").data["tables"] if one["name"] == "CTC lattice")
    values = torch.cat([table["scores"], table["end"][:, None]], 1)
    assert sum(text.get_text() == "−∞" for text in axes.texts) == int(torch.isinf(values).sum()) > 0
    assert axes.get_xticklabels()[-1].get_text() == "end"
    numbers = np.array([text.get_position() for text in axes.texts])
    for line in axes.lines:
        points = np.array(line.get_xydata())
        for start, end in pairwise(points):
            along = start + np.linspace(0, 1, 20)[:, None] * (end - start)
            assert (np.abs(along[:, None] - numbers[None]).max(-1) > 0.4).all()


def test_a_beam_shows_scores_or_sums(pages: Pages) -> None:  # noqa: F811
    found = pages("transformer")
    nodes = found.view("beam").data["nodes"]
    for layer, key in (("scores", "normalised"), ("sums", "score")):
        shown = [text.get_text().rsplit(" ", 1)[1] for text in found.figure("beam", layer).axes[0].texts]
        assert shown == [f"{node[key]:.2f}" for node in nodes]
        assert not faults(found.figure("beam", layer))
    finished = next(node for node in nodes if node["fate"] == "complete" and node["step"] > 1)
    assert finished["score"] == pytest.approx(finished["normalised"] * finished["step"], rel=1e-5)
    plain = pages("transformer").subject.loaded.run.folder
    result = call("predict", plain, "search.length_penalty=0", "--json", stdin=b"der kleine Hund\n")
    assert result.code == 0, result.err


def test_a_comparison_opens_at_a_view(tmp_path: Path) -> None:
    drawers = re.search(r"const VIEWS = \{(.*?)\}", asset("modules/compare.js"))
    assert drawers is not None
    assert set(re.findall(r"(\w+):", drawers[1])) == set(COMPARISON_VIEWS)
    page, numbers = tmp_path / "a.html", tmp_path / "a.json"
    assert call("compare", "--untrained", "-o", page, "--view", "weights").code == 0
    assert page_data(page.read_text(encoding="utf-8"))["first"] == "weights"
    assert call("compare", "--untrained", "-o", numbers, "--view", "weights").code == 0
    assert [view["kind"] for view in json.loads(numbers.read_text())["views"]] == ["weights"]
    for given, message in (("nothing", "expected one of story"), ("cost", "expected one of flows, weights")):
        result = call("compare", "--untrained", "-o", page, "--view", given)
        assert (result.code, message in result.err) == (2, True)
    assert "--view goes with --output" in call("compare", "--untrained", "--view", "flows").err
