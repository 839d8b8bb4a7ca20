"""`dragoman.train` as a Python user calls it: parts of a dataset, settings as keywords, a callback, messages."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.auto.from_python import assignments
from dragoman.base.errors import ConfigError, DataError
from tests.conftest import words

TINY = ("preset=demo-rnn", "data.units=words")
STEPS = {"steps": 2, "optimizer": {"warmup": 1}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))


def records(count: int, seed: int = 1) -> list[dict[str, Any]]:
    return [{"id": n, "date": word.upper(), "written": word} for n, word in enumerate(words(count, seed))]


def pairs(count: int, seed: int = 1) -> list[tuple[str, str]]:
    return [(word, word.upper()) for word in words(count, seed)]


def test_parts_of_a_dataset_are_training_validation_and_test_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets")
    parts = {"train": records(40), "validation": records(7, 2), "test": records(5, 3), "extra": records(1)}
    data = datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in parts.items()})
    seen: list[tuple[int, dict[str, float]]] = []
    run = dragoman.train(
        data, tmp_path / "run", "data.columns=written,date", preset="demo-rnn", train=STEPS,
        on_metrics=lambda step, metrics: seen.append((step, dict(metrics))),
    )  # fmt: skip
    assert run.config.train.steps == 2
    assert run.config.data.columns == ("written", "date")
    assert run.run.data["valid"]["pairs" if "pairs" in run.run.data["valid"] else "examples"] == 7
    assert run.test_scores["segments"] == 5
    assert [step for step, _ in seen] == [1, 2, 2, 2]
    assert {"train/loss", "train/learning_rate"} <= seen[0][1].keys()
    assert {"valid/loss", "valid/chrf"} <= seen[2][1].keys()
    assert seen[3][1] == {f"test/{name}": value for name, value in run.test_scores.items()}
    said = capsys.readouterr().err
    assert "found the parts extra too" in said
    assert "\ntest: " in said


def test_parts_may_be_named_and_in_memory(tmp_path: Path) -> None:
    run = dragoman.train(
        pairs(30), tmp_path / "run", *TINY, valid=pairs(6, 2), test=pairs(4, 3), train=STEPS, quiet=True
    )
    assert run.test_scores["segments"] == 4
    assert {row["valid"]["loss"] for row in run.run.metrics() if "valid" in row} == {run.evaluate(pairs(6, 2))["loss"]}
    given = {"train": pairs(30), "valid": pairs(6, 2)}
    again = dragoman.train(given, tmp_path / "again", *TINY, train=STEPS, quiet=True)
    assert again.run.metrics()[-1]["valid"] == run.run.metrics()[-1]["valid"]
    assert again.test_scores == {}


def test_a_language_model_is_scored_on_test_data_too(tmp_path: Path) -> None:
    lines = [{"text": " ".join(words(6, seed))} for seed in range(40)]
    run = dragoman.train(
        lines, tmp_path / "run", task="language-model", test=lines[:3], quiet=True,
        train={"steps": 1}, model={"stack": {"kind": "recurrent", "layers": 1, "width": 8, "embedding": 8}},
    )  # fmt: skip
    assert run.test_scores["perplexity"] > 1


def test_settings_are_tables_texts_and_dotted_names() -> None:
    import numpy

    given = {"train": {"steps": numpy.int64(5), "optimizer": {"schedule": "cosine"}}, "search.beam": 3}
    assert [*assignments(given, None)] == ["train.steps=5", 'train.optimizer.schedule="cosine"', "search.beam=3"]
    assert [*assignments({"model": {"kind": "crf"}}, "tag")] == ['model.kind="crf"']


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a setting without its table": (
        {"steps": 200},
        'train: found steps=200, which is a setting; write train={"steps": 200}, or as text "train.steps=200"',
    ),
    "a misspelt argument": (
        {"vaild": "x.tsv"},
        "found vaild='x.tsv', expected an argument or a table of settings. Did",
    ),
    "a misspelt table": ({"trian": {"steps": 2}}, "Did you mean 'train'?"),
    "a misspelt setting": ({"train": {"stepz": 2}}, "train.stepz: no such setting. Did you mean 'train.steps'?"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_keywords_name_the_nearest(wrong: str, tmp_path: Path) -> None:
    keywords, expected = WRONG[wrong]
    with pytest.raises((TypeError, ConfigError)) as caught:
        dragoman.train(pairs(30), tmp_path / "run", quiet=True, **keywords)
    assert expected in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["dicts", "pandas"])
def test_errors_name_rows_and_columns_as_the_caller_knows_them(kind: str, tmp_path: Path) -> None:
    rows = [{"written": row["written"], "date": row["date"]} for row in records(30)]
    rows[7]["date"] = None
    data: Any = rows
    place = "data: row 8"
    if kind == "pandas":
        data = pytest.importorskip("pandas").DataFrame(rows, index=[f"r{n}" for n in range(30)])
        place = "data: row 8 (index r7)"
    with pytest.raises(DataError) as caught:
        dragoman.train(data, tmp_path / "run", *TINY, train=STEPS, quiet=True)
    assert str(caught.value).startswith(f"{place}: 'date' is null, expected text. Correct")
    assert "cache" not in str(caught.value)
    with pytest.raises(DataError, match=r"^valid: row 8( \(index r7\))?: 'date' is null"):
        dragoman.train(pairs(30), tmp_path / "run", *TINY, valid=data, train=STEPS, quiet=True)


def test_faults_that_are_skipped_are_named_as_the_caller_knows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*pairs(30), ("", "X")]
    dragoman.train(rows, tmp_path / "run", *TINY, "data.faults=skip", train=STEPS)
    said = capsys.readouterr().err
    assert "data: row 31" in said
    assert ".jsonl" not in said


def test_rows_of_many_fields_give_a_short_error(tmp_path: Path) -> None:
    wide = [{f"column number {n}": "x" for n in range(3000)}]
    with pytest.raises(DataError) as caught:
        dragoman.train(wide, tmp_path / "run", quiet=True)
    assert len(str(caught.value)) <= 500
    assert "and 2988 more, expected 'source' and 'target'" in str(caught.value)


def test_what_a_callback_raises_ends_training_and_the_call_resumes(tmp_path: Path) -> None:
    class EnoughError(Exception):
        pass

    def stop(step: int, metrics: Any) -> None:
        if "valid/loss" in metrics:
            raise EnoughError

    settings = {"steps": 4, "validate_every": 2, "optimizer": {"warmup": 1}}
    with pytest.raises(EnoughError):
        dragoman.train(pairs(30), tmp_path / "run", *TINY, train=settings, on_metrics=stop, quiet=True)
    run = dragoman.train(pairs(30), tmp_path / "run", *TINY, train=settings, quiet=True)
    assert run.run.metrics()[-1]["step"] == 4


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_training_after_its_checkpoint(number: int, code: int, tmp_path: Path) -> None:
    def send(step: int, metrics: Any) -> None:
        if step == 3 and "train/loss" in metrics:
            signal.raise_signal(number)

    settings = {"steps": 5, "log_every": 1, "optimizer": {"warmup": 1}}

    def careless() -> None:
        with contextlib.suppress(Exception):  # as scripts and notebooks write it
            dragoman.train(pairs(30), tmp_path / "run", *TINY, train=settings, on_metrics=send, quiet=True)

    with pytest.raises(KeyboardInterrupt) as caught:
        careless()
    assert isinstance(caught.value, dragoman.Interrupted)
    assert (caught.value.code, caught.value.step) == (code, 3)
    assert str(caught.value) == "stopped and saved at step 3; the same call resumes from there"
    assert (tmp_path / "run" / "checkpoints" / "00000003").is_dir()
    dragoman.train(pairs(30), tmp_path / "run", *TINY, train=settings, quiet=True)
    dragoman.train(pairs(30), tmp_path / "straight", *TINY, train=settings, quiet=True)
    weights = [tmp_path / name / "weights.safetensors" for name in ("run", "straight")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
