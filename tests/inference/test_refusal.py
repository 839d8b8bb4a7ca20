"""Outputs below a confidence are left out and marked, everywhere; calibrate says which confidence to ask for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import dragoman
from dragoman.base.errors import ConfigError, RunError
from dragoman.scoring.calibration import at_error_rate, risk_coverage
from tests.conftest import TrainedFolder, call, write_rows


@pytest.fixture(scope="module")
def calibrated(trained_folder: TrainedFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusal") / "run"
    shutil.copytree(trained_folder.run, folder)
    pairs = write_rows(folder.parent / "c.tsv", [row for row in training_rows(trained_folder) for _ in range(2)])
    result = call("calibrate", folder, pairs, "--error-rate", "0.9", "--json")
    assert result.code == 0, result.err
    table = json.loads(result.out)
    assert table["min_confidence"]["error"] <= 0.9
    assert table["outputs"]["risk"][-1]["coverage"] <= 1.0
    return folder


def training_rows(folder: TrainedFolder) -> list[tuple[str, ...]]:
    lines = (folder.folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines[:100]]


def test_uncertain_outputs_are_left_out_and_marked(inside: TrainedFolder, calibrated: Path) -> None:
    texts = [source for source, _ in training_rows(inside)[:30]]
    plain = dragoman.load(calibrated).predict(texts)
    confidences = sorted(prediction.confidence or 0.0 for prediction in plain)
    least = confidences[10]
    outputs = dragoman.load(calibrated, min_confidence=least).predict(texts)
    for before, after in zip(plain, outputs, strict=True):
        assert before.confidence is not None
        assert bool(after.refused) is (before.confidence < least)
        assert after.text == ("" if after.refused else before.text)
    assert 0 < sum(bool(output.refused) for output in outputs) <= 10
    lines = "".join(f"{text}\n" for text in texts).encode()
    shown = call("predict", calibrated, "--min-confidence", str(least), "--json", stdin=lines)
    tables = [json.loads(line) for line in shown.lines]
    assert [table.get("refused", "") for table in tables] == [output.refused for output in outputs]
    bare = call("predict", calibrated, "--min-confidence", str(least), stdin=lines)
    assert bare.code == 0
    assert [bool(line) for line in bare.lines] == [not output.refused for output in outputs]
    assert "below min_confidence" in bare.err


def test_documents_mark_what_is_refused(inside: TrainedFolder, calibrated: Path, tmp_path: Path) -> None:
    (tmp_path / "a.po").write_text('msgid "abc"\nmsgstr ""\n', encoding="utf-8")
    (tmp_path / "a.xlf").write_text(
        '<xliff version="1.2"><file source-language="en"><body><trans-unit id="1"><source>abc</source></trans-unit>'
        "</body></file></xliff>",
        encoding="utf-8",
    )
    (tmp_path / "b.xlf").write_text(
        '<xliff version="2.0" srcLang="en" trgLang="de"><file id="f"><unit id="u"><segment><source>abc</source>'
        "</segment></unit></file></xliff>",
        encoding="utf-8",
    )
    (tmp_path / "a.html").write_text("<p>abc</p>", encoding="utf-8")
    files = [tmp_path / name for name in ("a.po", "a.xlf", "b.xlf", "a.html")]
    result = call("translate", calibrated, *files, "-o", tmp_path / "out", "--min-confidence", "1", "--no-review")
    assert result.code == 0, result.err
    assert "1 refused" in result.err
    po, old, new, page = ((tmp_path / "out" / file.name).read_text(encoding="utf-8") for file in files)
    assert po == '#, fuzzy\nmsgid "abc"\nmsgstr ""\n'
    assert '<target state="needs-translation" state-qualifier="rejected-inaccurate"></target>' in old
    assert '<segment state="initial" subState="dragoman:refused">' in new
    assert page == "<p>abc</p>"


def test_mistakes(inside: TrainedFolder, calibrated: Path) -> None:
    with pytest.raises(RunError, match="first: dragoman calibrate"):
        dragoman.load(inside.run).predict(["abc"], min_confidence=0.5)
    with pytest.raises(ConfigError, match="min_confidence: found 2, expected at least 0 and at most 1"):
        dragoman.load(calibrated, min_confidence=2)
    assert call("predict", calibrated, "--min-confidence", "x", stdin=b"abc\n").code == 2


def test_the_risk_coverage_curve_is_that_of_counting() -> None:
    generator = np.random.default_rng(1)
    confidences = generator.integers(0, 20, 200) / 20  # many are equal
    correct = generator.random(200) < confidences
    curve = risk_coverage(confidences, correct)
    for point in curve:
        kept = confidences >= point.confidence
        assert point.coverage == kept.mean()
        assert point.error == pytest.approx((~correct[kept]).mean())
    assert curve[-1].coverage == 1
    chosen = at_error_rate(curve, 0.2)
    assert chosen is not None
    assert all(point.error > 0.2 for point in curve if point.coverage > chosen.coverage)
    assert at_error_rate([point for point in curve if point.error > 0], 0.0) is None
