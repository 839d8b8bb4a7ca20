"""Runs and their outputs cross processes: pickle, multiprocessing, concurrent.futures, joblib, Parquet."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.base.errors import RunError
from dragoman.inference.prediction import Prediction
from tests.conftest import TrainedFolder

TEXTS = ["abc", "fade", "jig"]


def predict(run: dragoman.Predictor, texts: list[str]) -> list[Prediction]:
    return run.predict(texts)


def test_a_pickle_is_small_and_opens_on_first_use(inside: TrainedFolder) -> None:
    run = dragoman.load("runs/pairs", "cpu", beam=2)  # a relative folder: the copy finds it from anywhere
    run.test_scores = {"chrf": 1.0}
    data = pickle.dumps(run)
    assert len(data) < 3000
    copy = pickle.loads(data)
    assert "run" not in vars(copy)
    assert copy.test_scores == {"chrf": 1.0}
    assert pickle.dumps(copy) == data  # one that is not open yet travels on
    assert "run" not in vars(copy)
    assert copy.predict(TEXTS) == run.predict(TEXTS)
    assert (copy.defaults, copy.device.type) == (run.defaults, "cpu")
    assert copy.run.folder == Path("runs/pairs").absolute()
    with pytest.raises(AttributeError, match="no attribute 'banana'"):
        _ = copy.banana


def test_several_threads_may_use_a_copy_first(inside: TrainedFolder) -> None:
    copy = pickle.loads(pickle.dumps(dragoman.load("runs/pairs", "cpu")))
    found: list[list[Prediction]] = []
    threads = [threading.Thread(target=lambda: found.append(copy.predict(TEXTS))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(outputs == found[0] for outputs in found)


def test_a_folder_that_is_gone_is_an_error_of_the_first_use(inside: TrainedFolder, tmp_path: Path) -> None:
    import shutil

    shutil.copytree("runs/pairs", tmp_path / "run")
    copy = pickle.loads(pickle.dumps(dragoman.load(tmp_path / "run")))
    shutil.rmtree(tmp_path / "run")
    for _ in range(2):
        with pytest.raises(RunError, match="no such run folder"):
            copy.predict(TEXTS)


def test_language_models_and_labelers_travel_too(tmp_path: Path, cached: Path) -> None:
    stack = {"kind": "recurrent", "layers": 1, "width": 8, "embedding": 8}
    lines = [f"a b c {number}" for number in range(60)]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    writer = dragoman.train(
        tmp_path / "lines.txt", tmp_path / "lm", task="language-model", train={"steps": 1}, model={"stack": stack},
        quiet=True,
    )  # fmt: skip
    copy = pickle.loads(pickle.dumps(writer))
    assert copy.complete(["a b"], max_length=3) == writer.complete(["a b"], max_length=3)
    rows = [(line, "xy"[number % 2]) for number, line in enumerate(lines)]
    labeler = dragoman.train(rows, tmp_path / "labels", task="classify", train={"steps": 1}, quiet=True)
    unopened = pickle.loads(pickle.dumps(labeler))
    assert unopened.labels == labeler.labels == ("x", "y")
    assert pickle.loads(pickle.dumps(unopened)).predict(lines[:2]) == labeler.predict(lines[:2])


def test_predictions_become_a_column_of_a_parquet_file(inside: TrainedFolder, tmp_path: Path) -> None:
    pandas, parquet = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")
    outputs = dragoman.load("runs/pairs", "cpu").predict([*TEXTS, ""], beam=3, n_best=2)
    table = pandas.DataFrame({"source": [*TEXTS, ""], "output": [output.as_table() for output in outputs]})
    table.to_parquet(tmp_path / "out.parquet")
    found = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["output"]["text"] for row in found] == [output.text for output in outputs]
    assert found[0]["output"]["alternatives"][0]["text"] == outputs[0].alternatives[0].text
    assert tuple(found[0]["output"]["token_scores"]) == outputs[0].token_scores
    assert pickle.loads(pickle.dumps(outputs)) == outputs


def with_pool(run: Any) -> list[Prediction]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(predict, (run, TEXTS))  # type: ignore[no-any-return]


def with_executor(run: Any) -> list[Prediction]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(predict, run, TEXTS).result()


def with_joblib(run: Any) -> list[Prediction]:
    joblib = pytest.importorskip("joblib")
    parts = joblib.Parallel(n_jobs=2)(joblib.delayed(predict)(run, [text]) for text in TEXTS)
    return [output for part in parts for output in part]


@pytest.mark.page  # each starts processes that import torch
@pytest.mark.parametrize("way", [with_pool, with_executor, with_joblib])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_other_processes_predict_the_same(way: Callable[[Any], list[Prediction]], inside: TrainedFolder) -> None:
    run = dragoman.load("runs/pairs", "cpu")
    assert [output.text for output in way(run)] == [output.text for output in run.predict(TEXTS)]
