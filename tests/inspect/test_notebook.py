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
