"""Trackers follow trainings: TensorBoard, MLflow, Weights & Biases and trackio, each with its own package."""

from __future__ import annotations

import importlib
import json
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.base.errors import ConfigError, MissingExtraError
from dragoman.training.trackers import TRACKERS, OnMetrics, TrackedRun, Tracker
from tests.conftest import words

SETTINGS = {"steps": 3, "log_every": 1, "validate_every": 2, "optimizer": {"warmup": 1}}
TINY = ("preset=demo-rnn", "data.units=words")
PAIRS = [(word, word.upper()) for word in words(30)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def train(folder: Path, *names: str, steps: int = 3, **more: Any) -> dragoman.Predictor:
    settings = {**SETTINGS, "steps": steps, "track": names}
    return dragoman.train(PAIRS, folder, *TINY, train=settings, quiet=True, **more)


def installed(package: str) -> Any:
    """A package, or a skipped test where it is missing or does not go with the others that are installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(package)
        except ImportError as error:
            pytest.skip(f"{package}: {error}")


class Recorder(Tracker):
    """Keeps what it is told; fails where a test asks for it."""

    name = "recorder"

    def __init__(self, fails_at: str = "") -> None:
        self.fails_at, self.told, self.runs = fails_at, list[Any](), list[TrackedRun]()

    @contextmanager
    def follow(self, run: TrackedRun) -> Iterator[OnMetrics]:
        self.fail("start")
        self.runs.append(run)
        try:
            yield self.log
        except BaseException as error:
            self.told.append(type(error).__name__)
            raise
        finally:
            self.told.append("end")
        self.fail("end")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.fail("log")
        self.told.append((step, *(name for name in metrics if name.endswith("/loss"))))

    def fail(self, place: str) -> None:
        if self.fails_at == place:
            raise OSError("the server is gone")


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    tracker = dragoman.register(Recorder())
    yield tracker
    TRACKERS.remove(tracker)


def test_a_tracker_gets_settings_and_every_row(recorder: Recorder, tmp_path: Path) -> None:
    seen: list[int] = []
    train(tmp_path / "run", "recorder", on_metrics=lambda step, _: seen.append(step))
    rows = [(1, "train/loss"), (2, "train/loss"), (2, "valid/loss"), (3, "train/loss"), (3, "valid/loss")]
    assert recorder.told == [*rows, "end"]
    assert seen == [1, 2, 2, 3, 3]
    (run,) = recorder.runs
    assert (run.name, run.group, run.step) == ("run", "", 0)
    assert run.settings["train.steps"] == 3
    assert run.settings["model.encoder.kind"] == "recurrent"
    train(tmp_path / "run", "recorder", steps=4)
    assert recorder.runs[1].step == 3
    assert recorder.runs[1].id == run.id == (tmp_path / "run" / "tracking").read_text().strip()


@pytest.mark.parametrize("place", ["start", "log", "end"])
def test_a_tracker_that_fails_is_a_warning_given_once(
    place: str, recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder.fails_at = place
    assert train(tmp_path / "run", "recorder").run.metrics()[-1]["step"] == 3
    lines = [line for line in capsys.readouterr().err.splitlines() if "train.track" in line]
    expected = "recorder failed and records no more of this run (the server is gone)"
    assert lines == [f"warning: train.track: {expected}"]


def test_a_tracker_learns_how_training_ended(recorder: Recorder, tmp_path: Path) -> None:
    with pytest.raises(dragoman.Interrupted):
        train(tmp_path / "run", "recorder", on_metrics=lambda step, _: signal.raise_signal(signal.SIGTERM))
    assert recorder.told[-2:] == ["Interrupted", "end"]


def test_unknown_trackers_and_missing_packages_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"train\.track: found 'mlfow', no such tracker\. Did you mean 'mlflow'\?"):
        train(tmp_path / "run", "mlfow")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingExtraError, match="needs the package 'mlflow', which is not installed"):
        train(tmp_path / "run", "mlflow")
    assert not (tmp_path / "run").exists()


def test_tensorboard_goes_on_where_training_does(tmp_path: Path) -> None:
    installed("tensorboard")
    train(tmp_path / "run", "tensorboard")
    train(tmp_path / "run", "tensorboard", steps=5)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4, 5]
    assert [event.step for event in events.Scalars("valid/chrf")] == [2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_settings_metrics_and_trials_as_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = installed("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "ml").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "words")
    search = tmp_path / "search"
    search.mkdir()
    (search / "search.json").write_text("{}")
    train(tmp_path / "run", "mlflow")
    train(tmp_path / "run", "mlflow", steps=4)
    train(search / "trials" / "one", "mlflow")
    train(search / "trials" / "two", "mlflow")
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("words").experiment_id])
    named = {run.info.run_name: run for run in runs}
    assert sorted(named) == ["one", "run", "search", "two"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    losses = client.get_metric_history(named["run"].info.run_id, "train/loss")
    assert [metric.step for metric in losses] == [1, 2, 3, 4]
    assert named["run"].data.params["train.steps"] == "3"
    parents = {name: run.data.tags.get("mlflow.parentRunId") for name, run in named.items()}
    parent = named["search"].info.run_id
    assert parents == {"run": None, "search": None, "one": parent, "two": parent}


@pytest.mark.page  # it starts a process of its own
@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_offline_runs_to_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("wandb")
    for name, value in (
        ("MODE", "offline"),
        ("SILENT", "true"),
        ("CONFIG_DIR", str(tmp_path)),
        ("CACHE_DIR", str(tmp_path)),
    ):
        monkeypatch.setenv(f"WANDB_{name}", value)
    train(tmp_path / "run", "wandb")
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    identity = (tmp_path / "run" / "tracking").read_text().strip()
    assert file.name == f"run-{identity}.wandb"
    data = file.read_bytes()
    for part in (b"train/loss", b"valid/chrf", b"train.optimizer.warmup", b"dragoman"):
        assert part in data


@pytest.mark.page
@pytest.mark.filterwarnings("ignore")
def test_trackio_writes_to_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    installed("trackio")
    train(tmp_path / "run", "trackio")
    import sqlite3

    (database,) = (tmp_path / "trackio").glob("dragoman*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select step, metrics from metrics order by step").fetchall()
    assert {step for step, _ in rows} == {1, 2, 3}
    assert any("train/loss" in json.loads(metrics) for _, metrics in rows)
