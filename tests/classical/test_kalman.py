"""The Kalman filter, smoother and EM against pykalman; missing values; forecasts as a run."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from dragoman.classical.kalman import KalmanModel
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
