"""The Kalman filter, smoother and EM against pykalman; missing values; forecasts as a run."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.classical.kalman import KalmanModel
from dragoman.inference.load import load_run
from tests.conftest import call


def example(seed: int = 3) -> tuple[KalmanModel, np.ndarray]:
    rng = np.random.default_rng(seed)
    states, values = 3, 2

    def spread(size: int) -> np.ndarray:
        root = rng.normal(size=(size, size))
        return root @ root.T + 0.5 * np.eye(size)

    model = KalmanModel(
        0.5 * rng.normal(size=(states, states)), rng.normal(size=(values, states)), spread(states), spread(values),
        rng.normal(size=states), spread(states),
    )  # fmt: skip
    return model, rng.normal(size=(2, 12, values))


def theirs(model: KalmanModel):  # type: ignore[no-untyped-def]
    pykalman = pytest.importorskip("pykalman")
    return pykalman.KalmanFilter(
        transition_matrices=model.transition, observation_matrices=model.observation,
        transition_covariance=model.state_noise, observation_covariance=model.observation_noise,
        initial_state_mean=model.first_mean, initial_state_covariance=model.first_covariance,
    )  # fmt: skip


@pytest.mark.parametrize("missing", [False, True])
def test_filter_and_smoother_are_those_of_pykalman(missing: bool) -> None:
    model, series = example()
    if missing:
        series[0, 3:5] = np.nan
        series[1, 0] = np.nan
    filtered = model.filter(series)
    smoothed = model.smooth(filtered)
    for row, one in enumerate(series):
        masked = np.ma.masked_invalid(one)
        means, covariances = theirs(model).filter(masked)
        assert filtered.means[row] == pytest.approx(means)
        assert filtered.covariances[row] == pytest.approx(covariances)
        means, covariances = theirs(model).smooth(masked)
        assert smoothed.means[row] == pytest.approx(means)
        assert smoothed.covariances[row] == pytest.approx(covariances)
        assert filtered.log_likelihood[row] == pytest.approx(theirs(model).loglikelihood(masked))


def test_em_is_that_of_pykalman_and_never_loses_likelihood() -> None:
    model, series = example()
    names = ["transition_matrices", "observation_matrices", "transition_covariance", "observation_covariance",
             "initial_state_mean", "initial_state_covariance"]  # fmt: skip
    other = theirs(model)
    other.em_vars = names
    other = other.em(series[0], n_iter=1, em_vars=names)
    ours, likelihood = model.em(series[:1])
    assert ours.transition == pytest.approx(other.transition_matrices, abs=1e-6)
    assert ours.observation == pytest.approx(other.observation_matrices, abs=1e-6)
    assert ours.first_mean == pytest.approx(other.initial_state_mean)
    for _ in range(20):
        ours, now = ours.em(series[:1])
        assert now >= likelihood - 1e-6
        likelihood = now


def test_forecasts_are_steps_without_values() -> None:
    model, series = example()
    series[0, 10:] = np.nan  # the last values are missing
    means, covariances = model.forecast(series, 3)
    for row, one in enumerate(series):
        other = theirs(model)
        known = np.ma.masked_invalid(np.concatenate([one, np.full((3, 2), np.nan)]))
        states, spreads = other.filter(known)
        for step in range(3):
            assert means[row, step] == pytest.approx(model.observation @ states[12 + step])
            spread = model.observation @ spreads[12 + step] @ model.observation.T + model.observation_noise
            assert covariances[row, step] == pytest.approx(spread)


def test_several_series_with_missing_values_come_from_files(tmp_path: Path, cached: Path) -> None:
    random.seed(4)
    lines = []
    for _ in range(80):
        phase = random.uniform(0, 6)
        wave = [(math.sin(phase + 0.5 * step), 50 + 10 * math.cos(phase + 0.5 * step)) for step in range(14)]
        steps = [f"{a:.4f};{b:.3f}" for a, b in wave]
        steps[random.randrange(3, 12)] = "nan;nan"
        lines.append(" ".join(steps[:12]) + "\t" + " ".join(f"{a:.4f};{b:.3f}" for a, b in wave[12:]) + "\n")
    data, run = tmp_path / "train.tsv", tmp_path / "run"
    data.write_text("".join(lines))
    settings = ("task=regress", "tokenizer.source.kind=numbers", "model.states=2")
    told = call("train", data, *settings, "model.kind=kalman", "model.iterations=10", "--run", run)
    assert told.code == 0, told.err
    scores = json.loads(call("evaluate", run, data, "--json").out)
    assert scores["mse"] < 1  # of two numbers, one of which has a variance of 50
    (line,) = call("predict", run, stdin=b"0.1;51 nan;nan 0.7;55 nan;nan\n").out.splitlines()
    assert [step.count(";") for step in line.split()] == [1, 1]
    loaded: Any = load_run(run)
    model: Any = loaded.model
    series = np.array([loaded.source_tokenizer.encode("0.1;51 nan;nan 0.7;55 nan;nan")]).reshape(1, 4, 2)
    expected = model.model.forecast(np.where(np.isfinite(series), series, np.nan), 2)[0]
    found = [float(one) for one in line.replace(";", " ").split()]
    assert found == pytest.approx(loaded.target_tokenizer.unscale(expected.ravel()), rel=1e-5)
    refused = call("train", data, "task=regress", "tokenizer.source.kind=numbers", "--run", tmp_path / "no")
    assert (refused.code, "found 'nan', expected a number in the series" in refused.err) == (2, True)
    other = tmp_path / "other.tsv"
    other.write_text("".join(line.split("\t")[0] + "\t1\n" for line in lines))
    refused = call("train", other, *settings, "model.kind=kalman", "--run", tmp_path / "no")
    assert (refused.code, "forecasts all series" in refused.err) == (2, True)


def test_a_kalman_filter_is_a_run(tmp_path: Path, cached: Path) -> None:
    random.seed(3)
    lines = []
    for _ in range(150):
        phase, speed = random.uniform(0, 6), 0.5
        wave = [math.sin(phase + speed * step) + random.gauss(0, 0.02) for step in range(13)]
        lines.append(" ".join(f"{one:.4f}" for one in wave[:12]) + f"\t{wave[12]:.4f}\n")
    data, test, run = tmp_path / "train.tsv", tmp_path / "test.tsv", tmp_path / "run"
    data.write_text("".join(lines[:120]))
    test.write_text("".join(lines[120:]))
    settings = ("task=regress", "tokenizer.source.kind=numbers", "model.kind=kalman")
    told = call("train", data, *settings, "--run", run)
    assert told.code == 0, told.err
    scores = json.loads(call("evaluate", run, test, "--json").out)
    assert scores["mse"] < 0.02
    assert scores["pearson"] > 0.98
    alone = call("predict", run, "--batch-size", "1", stdin=b"0.1 0.2 0.3\n0.5 0.4 0.3 0.2\n").out
    assert alone == call("predict", run, stdin=b"0.1 0.2 0.3\n0.5 0.4 0.3 0.2\n").out
    wrong = call(
        "train", data, "task=regress", "tokenizer.source.kind=words", "model.kind=kalman", "--run", tmp_path / "no"
    )
    assert (wrong.code, "reads numbers" in wrong.err) == (2, True)
