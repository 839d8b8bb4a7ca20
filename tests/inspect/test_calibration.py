"""Calibration finds the best temperature, is bound to the weights, and changes no output."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dragoman
from dragoman.base.errors import DataError, RunError
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS
from dragoman.inference.predictor import Predictor
from dragoman.inspect.measure import calibration as confidence
from dragoman.inspect.measure.calibration import (
    fit_calibration,
    fit_temperature,
    measure_temperatures,
    save_calibration,
    validation_rows,
)
from dragoman.scoring.calibration import reliability
from dragoman.training.checkpoints import read_tensors, write_tensors
from tests.conftest import TrainedFolder, call


def places_of(truth_temperature: float, tokens: int = 20_000) -> list[tuple[Tensor, Tensor]]:
    """Log-probabilities, and targets drawn from them at a temperature."""
    generator = torch.Generator().manual_seed(3)
    scores = (3 * torch.randn(tokens, 9, generator=generator)).log_softmax(-1)
    truth = torch.multinomial((scores / truth_temperature).softmax(-1), 1, generator=generator)[:, 0]
    return list(zip(scores.split(7000), truth.split(7000), strict=True))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_fitting_recovers_the_true_temperature(temperature: float) -> None:
    parts = places_of(temperature)
    found = fit_temperature(lambda: iter(parts))
    assert found == pytest.approx(temperature, rel=0.03)
    around = [found * 0.98, found, found * 1.02, 1.0]
    fits = measure_temperatures(lambda: iter(parts), around)
    assert fits[1].loss < min(fits[0].loss, fits[2].loss)
    assert fits[1].reliability.error < 0.02
    if temperature != 1.0:
        assert fits[3].reliability.error > 0.05


def test_the_fitted_temperature_is_the_best_of_a_fine_grid() -> None:
    parts = places_of(1.7, tokens=300)
    grid = torch.linspace(0.8, 3.0, 2201).tolist()
    losses = [
        sum(float(-(s.double() / t).log_softmax(-1).gather(-1, y[:, None]).sum()) for s, y in parts) for t in grid
    ]
    assert fit_temperature(lambda: iter(parts)) == pytest.approx(grid[losses.index(min(losses))], abs=1e-3)


def test_a_model_that_is_always_right_or_wrong_gets_the_end_of_the_range() -> None:
    scores = torch.tensor([[2.0, 0.0], [0.0, 3.0]]).log_softmax(-1)
    assert fit_temperature(lambda: iter([(scores, torch.tensor([0, 1]))])) == pytest.approx(0.05, rel=1e-3)
    assert fit_temperature(lambda: iter([(scores, torch.tensor([1, 0]))])) == pytest.approx(20.0, rel=1e-3)


def test_tokens_of_probability_zero_do_not_break_the_fit() -> None:
    parts = [(torch.nn.functional.pad(s, (0, 1), value=-torch.inf), y) for s, y in places_of(2.0)]
    plain = places_of(2.0)
    assert fit_temperature(lambda: iter(parts)) == pytest.approx(fit_temperature(lambda: iter(plain)))


@pytest.fixture
def run(inside: TrainedFolder, tmp_path: Path) -> Path:
    """A copy of the run, because other tests need one that is not calibrated."""
    return Path(shutil.copytree(inside.run, tmp_path / "run"))


def test_calibration_lowers_the_loss_and_is_the_same_every_time(run: Path) -> None:
    predictor = dragoman.load(run)
    found = fit_calibration(predictor)
    assert found.after.loss < found.before.loss
    assert found.after.reliability.error < found.before.reliability.error
    assert fit_calibration(predictor).as_dict() == found.as_dict()
    other = fit_calibration(predictor, batch_size=5)
    assert other.temperature == pytest.approx(found.temperature, rel=1e-3)
    valid = [json.loads(line)["valid"] for line in (run / "metrics.jsonl").read_text().splitlines() if "valid" in line]
    assert found.before.loss == pytest.approx(min(row["loss"] for row in valid), rel=1e-3)
    bins = found.before.reliability.bins
    accuracy = sum(one.size * one.accuracy for one in bins) / found.before.reliability.count
    assert accuracy == pytest.approx(max(row["token_accuracy"] for row in valid), abs=0.05)


def test_output_confidence_is_the_probability_of_an_exact_match(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recount with `predict`: the share of correct outputs and the calibration error of their confidences."""
    predictor = dragoman.load(run)
    rows = validation_rows(predictor)
    found = fit_calibration(predictor)
    decode = predictor.target_tokenizer.decode
    texts = [predictor.source_tokenizer.decode(source) for source, _ in rows]
    save_calibration(predictor, found)
    sure = predictor.predict(texts)
    right = [one.text == decode(target) for one, (_, target) in zip(sure, rows, strict=True)]
    outputs = found.outputs.as_dict()
    assert (outputs["count"], outputs["right"]) == (len(rows), sum(right))
    assert 0 < sum(right) < len(rows)
    confidences = [one.confidence or 0.0 for one in sure]
    assert sum(confidences) / len(rows) == pytest.approx(sum(right) / len(rows), abs=0.1)
    products = [math.prod(one.token_confidences) for one in sure]
    assert found.outputs.before.error == pytest.approx(reliability(products, right).error, abs=1e-4)
    order = sorted(range(len(rows)), key=lambda place: products[place])
    assert [confidences[place] for place in order] == sorted(confidences)  # the order stays
    monkeypatch.setattr(confidence, "MAX_OUTPUTS", 7)
    assert fit_calibration(predictor).outputs.before.count == 7


def slow_confidences(predictor: Predictor, source: str, output: str, temperature: float) -> list[float]:
    """Token by token with the step of the search."""
    model, target = predictor.model, [*predictor.target_tokenizer.encode(output), EOS]
    batch = batch_of([predictor.source_tokenizer.encode(source)])
    state, token, found = model.start(batch), 2, []
    with torch.no_grad():
        for following in target:
            scores, state = model.step(torch.tensor([token]), state)
            found.append(float((scores[0] / temperature).softmax(-1)[following]))
            token = following
    return found


def test_an_ensemble_of_calibrated_runs_has_no_confidences(run: Path) -> None:
    predictor = dragoman.load(run)
    save_calibration(predictor, fit_calibration(predictor))
    assert predictor.predict(["abc"])[0].confidence is not None
    together = dragoman.load(run, ensemble=(run,)).predict(["abc"])
    assert [one.confidence for one in together] == [None]
    assert together[0].text == predictor.predict(["abc"])[0].text
    result = call("predict", run, f"ensemble.runs={run}", "--json", stdin=b"abc\n")
    assert result.code == 0, result.err
    assert "confidence" not in json.loads(result.out)


def test_predictions_of_a_calibrated_run_have_confidences(run: Path) -> None:
    predictor = dragoman.load(run)
    texts = ["abc", "", "fade", "jig"]
    plain = predictor.predict(texts, n_best=2)
    assert all(one.confidence is None for one in plain)
    save_calibration(predictor, replace(fit_calibration(predictor), temperature=2.0))
    for asked in (predictor, dragoman.load(run)):
        sure = asked.predict(texts, n_best=2)
        assert [replace(one, confidence=None, token_confidences=(), alternatives=()) for one in sure] == [
            replace(one, alternatives=()) for one in plain
        ]
        assert sure[1].confidence is None
        for text, best in zip(texts, sure, strict=True):
            for one in (best, *best.alternatives) if text else ():
                expected = slow_confidences(predictor, text, one.text, 2.0)
                assert one.token_confidences == pytest.approx(expected, abs=1e-5)
                product = math.prod(expected)
                odds = product / (1 - product)
                slope, offset = asked.calibration.scale
                assert one.confidence == pytest.approx(1 / (1 + math.exp(-offset) * odds**-slope), abs=1e-4)
    save_calibration(predictor, replace(fit_calibration(predictor), temperature=1.0))
    for one in predictor.predict(["abc", "jig"]):  # at temperature 1 they are the scores of the search
        assert one.token_confidences == pytest.approx([math.exp(score) for score in one.token_scores], abs=1e-5)


def test_the_command_writes_and_draws_and_predict_prints_confidences(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "reliability.png"
    result = call("calibrate", run, "--plot", picture)
    assert result.code == 0, result.err
    assert picture.stat().st_size > 5000
    table = json.loads((run / "calibration.json").read_text())
    assert result.lines[0].split() == ["temperature", f"{table['temperature']:.4f}"]
    assert table["after"]["loss"] < table["before"]["loss"]
    assert (
        f"{100 * table['outputs']['after']['calibration_error']:.2f} %   of outputs, exact match with the reference"
        in result.out
    )
    assert {"slope", "offset", "count", "right", "before", "after", "risk"} == set(table["outputs"])
    assert json.loads(call("calibrate", run, "--json").out) | {"weights": table["weights"]} == table
    rows = [json.loads(line) for line in call("predict", run, "--json", stdin=b"abc\n\n").lines]
    assert len(rows[0]["token_confidences"]) == len(rows[0]["token_scores"])
    assert 0 < rows[0]["confidence"] <= 1
    assert "confidence" not in rows[1]
    many = json.loads(call("predict", run, "--json", "--n-best", "2", stdin=b"abc\n").out)
    assert set(many["alternatives"][0]) == {
        "text",
        "score",
        "tokens",
        "token_scores",
        "confidence",
        "token_confidences",
    }


def test_calibrating_on_a_file(run: Path, inside: TrainedFolder) -> None:
    (inside.folder / "some.tsv").write_text("abc\tABC\nfade\tFADE\n" * 15)
    found = json.loads(call("calibrate", run, "some.tsv", "--json").out)
    assert found["tokens"] == 15 * (4 + 5)
    for arguments, message in (
        (("some.tsv", "--source", "x", "--target", "y"), "name FILE, or both"),
        (("--plot", "x.txt"), "expected .png"),
    ):
        result = call("calibrate", run, *arguments)
        assert result.code == 2
        assert message in result.err


def test_other_weights_are_not_calibrated_and_a_damaged_file_is_an_error(run: Path) -> None:
    predictor = dragoman.load(run)
    save_calibration(predictor, fit_calibration(predictor))
    assert dragoman.load(run).calibration is not None
    weights = run / "weights.safetensors"
    write_tensors(weights, {name: tensor * 1.01 for name, tensor in read_tensors(weights).items()})
    assert dragoman.load(run).calibration is None
    (run / "calibration.json").write_text('{"temperature": 1.0, "weights": ""}')
    with pytest.raises(RunError, match="damaged"):
        dragoman.load(run)
    with pytest.raises(DataError, match="found 0 pairs"):
        fit_calibration(predictor, [])


def test_too_little_data_and_unlike_data_are_refused(run: Path, tmp_path: Path) -> None:
    one = tmp_path / "one.tsv"
    one.write_text("ab\tAB\n")
    result = call("calibrate", run, one)
    assert result.code == 2
    assert "too little to calibrate on: found 1 pairs with 3 target tokens, expected at least 20 pairs" in result.err
    assert not (run / "calibration.json").exists()
    unlike = tmp_path / "unlike.tsv"
    unlike.write_text("".join(f"{letter * 5}\t{'J' if letter == 'a' else 'A'}IJIJIJI\n" for letter in "ab" * 15))
    result = call("calibrate", run, unlike)
    assert result.code == 2
    assert "no temperature up to 20 fits" in result.err


def test_a_calibration_on_much_more_data_is_kept(run: Path, inside: TrainedFolder) -> None:
    assert call("calibrate", run, inside.folder / "pairs.tsv").code == 0
    before = (run / "calibration.json").read_bytes()
    result = call("calibrate", run, inside.write("few.tsv", "abc\tABC\nfade\tFADE\n" * 12), "--bins", "3")
    assert result.code == 2
    assert "kept, since it was fitted on" in result.err
    assert (run / "calibration.json").read_bytes() == before
