"""What a notebook shows of runs and predictions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dragoman
from dragoman.base import terminal
from tests.conftest import TrainedFolder


def test_a_notebook_shows_runs_and_predictions(inside: TrainedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    run = dragoman.load(inside.run, "cpu")
    assert "<svg" in run.curves().html
    assert "<table" in run.attention("abc")._repr_html_()
    assert run.inspect("abc", "ABD").save("page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "best validation" in run._repr_html_()
    (prediction,) = run.predict(["abc"])
    assert re.search(r'title="probability [\d.]+ ← ', prediction._repr_html_())

    class Words:
        def prediction_html(self, prediction: object) -> str:
            return f"<b>{prediction}</b>"

    monkeypatch.setattr(terminal, "pictures", Words)
    assert prediction._repr_html_() == f"<b>{prediction.text}</b>"


def test_inference_names_no_module_that_draws() -> None:
    for path in (Path(dragoman.__file__).parent / "inference").rglob("*.py"):
        assert not re.search(r"dragoman\.(notebook|reports)", path.read_text(encoding="utf-8")), path


def test_scores_evaluations_and_comparisons_are_tables(inside: TrainedFolder) -> None:
    outputs, references = ["a <b>", "c"], ["a b", "c"]
    scores = dragoman.score(outputs, references, ["exact_match", "wer"], draws=100)
    page = scores._repr_html_()
    assert "<caption>2 segments</caption>" in page
    assert "<th>metric</th><th>score</th><th>95 %</th><th>signature</th>" in page
    assert "<td>wer</td>" in page
    assert "<th>95 %</th>" not in dragoman.score(outputs, references, "wer")._repr_html_()
    compared = dragoman.compare({"<first>": outputs, "second": references}, references, ["wer"], draws=100)
    assert compared == list(compared)
    assert "<td>&lt;first&gt;</td>" in compared._repr_html_()
    assert "<th>p (bootstrap)</th>" in compared._repr_html_()
    evaluation = dragoman.load(inside.run, "cpu").evaluate([("abc", "ABC"), ("fade", "x")])
    page = evaluation._repr_html_()
    assert "<td>loss</td>" in page
    assert "<caption>2 segments</caption>" in page


def test_dir_shows_what_a_user_calls(inside: TrainedFolder) -> None:
    run = dragoman.load(inside.run, "cpu")
    names = dir(run)
    assert {"predict", "evaluate", "score", "inspect", "run", "config", "device"} <= set(names)
    assert len(names) < 30
    assert all(hasattr(run, name) for name in names)
    assert not [name for name in names if name.startswith("_") or name in ("backend", "codec", "complete")]
