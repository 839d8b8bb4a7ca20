"""A training plan is made without touching the run folder."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from dragoman import load
from dragoman.base.errors import ConfigError, DragomanError, RunError
from dragoman.cli import guarded
from dragoman.data.corpus import prepare_corpus
from dragoman.runs import Run, train
from dragoman.runs.plan import TrainingPlan, choose_action, plan_training
from dragoman.runs.tasks import config as configuration
from dragoman.runs.tasks.config import Config
from dragoman.training.runtime import Runtime
from dragoman.training.trainer import Trainer
from tests.training.kill_driver import table, write_pairs


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    content = table(write_pairs(tmp_path / "pairs.tsv", 80))
    content["train"] |= {"steps": 2, "validate_every": 2, "save_every": 1}
    return configuration.build(content)


def changed(config: Config, *overrides: str) -> Config:
    return configuration.build(configuration.settings.as_table(config), overrides)


def plan_of(config: Config, folder: Path, restart: bool = False) -> TrainingPlan:
    return plan_training(config, folder, choose_action(folder, restart), Runtime(torch.device("cpu")))


def test_planning_writes_nothing_and_the_plan_trains(config: Config, tmp_path: Path) -> None:
    folder, runtime = tmp_path / "run", Runtime(torch.device("cpu"))
    plan = plan_of(config, folder)
    assert plan.action == "create"
    assert not folder.exists()
    with ExitStack() as locks:
        plan.write_folder(runtime, locks)
        trainer = plan.trainer(runtime, lambda state: state.step == 1)
        assert isinstance(trainer, Trainer)
        assert trainer.train().step == 1
    again = plan_of(config, folder)
    assert (again.action, again.more_steps) == ("resume", False)
    assert plan_of(changed(config, "train.steps=3"), folder).more_steps
    assert plan_of(config, folder, restart=True).action == "replace"
    assert Run(folder).config.train.steps == 2


def test_epochs_become_steps(config: Config, tmp_path: Path) -> None:
    plan = plan_of(changed(config, "train.epochs=2.0"), tmp_path / "run")
    epoch = plan.task.loader(plan.config, plan.corpus, plan.model, Runtime(torch.device("cpu")).processes).epoch(0)
    assert plan.config.train.steps == len(epoch)  # two epochs, two batches a step


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["train.freeze=['nothing']"], "train.freeze: no weight is called 'nothing'"),
        (["train.start_from=nowhere"], "train.start_from: nowhere"),
    ],
)
def test_mistakes_are_found_before_the_folder_is_made(
    overrides: list[str], expected: str, config: Config, tmp_path: Path
) -> None:
    with pytest.raises(DragomanError, match=expected):
        train(changed(config, *overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_targets_that_are_all_too_long_are_found_before_the_folder_is_made(tmp_path: Path) -> None:
    rows = "".join(f"{letter}\t{letter * 30}\n" for letter in "abcdefghijklmnop")
    (tmp_path / "long.tsv").write_text(rows, encoding="utf-8")
    given = {
        "preset": "nat-ctc-small",
        "data": {"train": str(tmp_path / "long.tsv"), "holdout": 4},
        "tokenizer": {"source": {"kind": "characters"}},
    }
    with pytest.raises(RunError, match=r"no target can be written: raise model\.alignment\.upsample"):
        train(configuration.build(given, ["model.alignment.upsample=1"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_without_gradients_has_no_objective(tmp_path: Path) -> None:
    given = {"data": {"train": str(tmp_path / "pairs.tsv")}, "model": {"kind": "copy"}}
    with pytest.raises(ConfigError, match=r'train\.objective: "minimum-risk" trains by gradients, "copy" has none'):
        configuration.build(given, ["train.objective=minimum-risk"])


def test_an_empty_folder_becomes_a_run_and_another_folder_does_not(config: Config, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert choose_action(tmp_path / "empty", restart=False) == "create"
    train(config, tmp_path / "empty")
    assert Run(tmp_path / "empty").weights_path().exists()
    with pytest.raises(RunError, match="not a run folder"):
        choose_action(tmp_path, restart=False)


def test_shuffling_by_shards_is_refused_and_says_why(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, why = tmp_path / "run", r'data\.shuffle: found "shards", expected "corpus": .*`dragoman check`'
    with pytest.raises(ConfigError, match=why):
        train(changed(config, "data.shuffle=shards"), run)
    with pytest.raises(ConfigError, match=why):
        prepare_corpus(changed(config, "data.shuffle=shards").data, config.tokenizer)
    assert not run.exists()
    assert not (tmp_path / "cache").exists()
    train(config, run)  # a run of an older version, that was trained by the setting
    settings_file = run / "config.toml"
    text = settings_file.read_text(encoding="utf-8")
    assert 'shuffle = "corpus"' in text
    settings_file.write_text(text.replace('shuffle = "corpus"', 'shuffle = "shards"'), encoding="utf-8")
    for overrides in ([], ["data.shuffle=corpus"], ["train.steps=3"]):
        assert guarded(["train", str(run), *overrides]) == 2
        assert "cannot resume: train a new one, with train.start_from" in capsys.readouterr().err
    assert load(run).predict(["abc"])
    assert train(changed(config, f"train.start_from={run}"), tmp_path / "next").step == 2


def test_training_uses_the_data_that_check_prepared_without_a_gpu(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "my.toml").write_text(configuration.settings.dump(config), encoding="utf-8")
    assert guarded(["check", str(tmp_path / "my.toml")]) == 0

    def build(*arguments: object) -> None:
        raise AssertionError("the data are prepared already")

    monkeypatch.setattr("dragoman.data.corpus._build", build)
    assert train(config, tmp_path / "run").step == 2
