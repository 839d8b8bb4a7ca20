"""Run folders: the format version, the lock, and the number of batches in a step when a run resumes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from dragoman.base.errors import RunError
from dragoman.runs import Run, train
from dragoman.runs.folder import RUN_FORMAT, locked
from dragoman.runs.resume import check_batches_per_step, resume_warnings
from dragoman.training.checkpoints import Checkpoints, TrainingState
from dragoman.training.display import Display
from tests.clock import takes_at_most
from tests.conftest import TrainedFolder, call
from tests.training.conftest import Configure
from tests.training.kill_driver import result

SHORT = ("train.steps=6", "train.validate_every=6", "train.decode=0")


def test_a_run_of_an_earlier_version_is_refused_in_one_line(configure: Configure, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(configure(*SHORT), run)
    assert json.loads((run / "run.json").read_text())["format"] == RUN_FORMAT
    (run / "run.json").unlink()  # as runs were before the format had a number
    (run / "config.toml").write_text("[search]\nan_old_setting = 6\n")
    expected = f"{run}: an earlier version of Dragoman made this run (format 1, expected {RUN_FORMAT}); train it anew"
    with pytest.raises(RunError) as error:
        Run(run)
    assert str(error.value).startswith(expected)
    for command in (("train", run), ("info", run), ("predict", run, tmp_path / "pairs.tsv")):
        outcome = call(*command)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
        assert expected in outcome.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format": 999, "version": "9.1"}', r"Dragoman 9\.1 made this run \(format 999\).*upgrade Dragoman"),
        ("{}", r"run\.json: damaged"),
        ('{"format": Infinity, "version": "1"}', r"run\.json: damaged"),
        ("[" * 100_000, r"run\.json: damaged"),
        ("none", r"run\.json: damaged"),
    ],
)
def test_a_run_of_a_later_version_is_refused(
    content: str,
    message: str,
    configure: Configure,
    tmp_path: Path,
) -> None:
    train(configure(*SHORT), tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(content)
    with pytest.raises(RunError, match=message):
        Run(tmp_path / "run")


def test_a_change_that_makes_parts_of_a_run_unlike_is_warned_of(configure: Configure) -> None:
    cosine = ("train.optimizer.schedule=cosine", "train.metric=bleu")
    before = configure("train.steps=40", *cosine)
    assert resume_warnings(before, before) == []
    (jump,) = resume_warnings(before, configure("train.steps=60", *cosine))
    assert jump.startswith("train.steps was 40, is 60: the cosine schedule ends there now")
    (other,) = resume_warnings(before, configure("train.steps=40", "search.beam=2", "train.decode=9", *cosine))
    assert "search.beam" in other
    assert "train.decode" in other
    assert "bleu of earlier validations is not comparable" in other
    plain = configure("train.steps=40", "train.metric=loss")
    assert resume_warnings(plain, configure("train.steps=60", "search.beam=2", "train.metric=loss")) == []


def test_settings_of_a_far_larger_model_take_no_memory(configure: Configure, tmp_path: Path) -> None:
    """A run folder may come from anybody: its settings could ask for terabytes."""
    train(configure(*SHORT), tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    text = path.read_text()
    assert text.count("width = 16") >= 2
    for width, feedforward in ((65_536, 1_000_000), (8_192, 32)):  # one parameter alone, or many
        sizes = text.replace("width = 16", f"width = {width}").replace(
            "feedforward = 32", f"feedforward = {feedforward}"
        )
        path.write_text(sizes)
        with pytest.raises(RunError, match=r"config.toml: describes a far larger model than the weights"):
            Run(tmp_path / "run").model(torch.device("cpu"))
    deep = (
        text.replace("layers = 1", "layers = 10000")
        .replace("width = 16", "width = 2")
        .replace("heads = 2", "heads = 1")
    )
    path.write_text(deep.replace("feedforward = 32", "feedforward = 1"))  # small, but long to build
    far_larger = r"config.toml: describes a far larger model than the weights"
    with takes_at_most(5), pytest.raises(RunError, match=far_larger):
        Run(tmp_path / "run").model(torch.device("cpu"))
    path.write_text(text)
    Run(tmp_path / "run").model(torch.device("cpu"))


@pytest.mark.parametrize("ratio", ['""', "NaN", "null", "[]", "-1", "1e308", "Infinity"])
def test_an_impossible_ratio_of_lengths_is_damage(ratio: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('data = { train = "a.tsv" }\n')
    (tmp_path / "run.json").write_text(json.dumps({"format": RUN_FORMAT, "version": "1"}))
    (tmp_path / "data.json").write_text(f'{{"train": {{}}, "valid": {{}}, "length_ratio": {ratio}, "fingerprint": ""}}')
    with pytest.raises(RunError, match=r"data\.json: damaged \(length_ratio: found"):
        assert Run(tmp_path).data


def test_a_second_training_in_the_same_folder_is_refused(configure: Configure, tmp_path: Path) -> None:
    run, refused = tmp_path / "run", []

    class Second(Display):
        def advance(self, step: int) -> None:
            if step in (2, 4):
                with pytest.raises(RunError, match="another process is training this run"):
                    train(configure(*SHORT), run)
                refused.append(step)

    train(configure(*SHORT), run, Second(quiet=True))
    assert refused == [2, 4]
    train(configure(*SHORT), tmp_path / "alone")
    assert result(run) == result(tmp_path / "alone"), "the first training went on undisturbed"
    train(configure(*SHORT), run)  # the lock is free again


def test_a_pipe_in_place_of_any_file_is_an_error(trained_folder: TrainedFolder, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_folder.run, run)
    pipe, aside = tmp_path / "pipe", tmp_path / "aside"
    os.mkfifo(pipe)
    for number, path in enumerate(sorted(path for path in run.rglob("*") if path.is_file())):
        path.rename(aside)
        path.symlink_to(pipe) if number % 2 else os.mkfifo(path)
        for command in (("predict", run), ("info", run), ("train", run)):
            outcome = call(*command, stdin=b"abc\n")
            assert (outcome.code, len(outcome.err.splitlines())) == (2, 1), (path, outcome.err)
            assert f"{path}: found a pipe" in outcome.err or "no config.toml" in outcome.err
        path.unlink()
        aside.rename(path)
    assert call("predict", run, stdin=b"abc\n").code == 0


def test_a_lock_is_never_taken_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("keep")
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="cannot lock the run folder"), locked(tmp_path):
        pass


@pytest.mark.parametrize(
    ("before", "now", "advice"),
    [
        ((2, 1), (2, 1), None),
        ((2, 1), (1, 2), None),
        ((2, 2), (1, 4), None),
        ((2, 1), (2, 2), "set train.accumulate=1 or start 1 process"),
        ((1, 4), (1, 2), "set train.accumulate=2 or start 4 processes"),
        ((1, 4), (1, 3), "start 4 processes"),
        ((1, 3), (2, 2), "start 3 processes with train.accumulate=1"),
    ],
)
def test_a_step_keeps_its_number_of_batches(
    before: tuple[int, int], now: tuple[int, int], advice: str | None, tmp_path: Path
) -> None:
    check_batches_per_step(tmp_path, *now)  # nothing was trained yet
    Checkpoints(tmp_path).save(TrainingState(step=3, accumulate=before[0], processes=before[1]), {})
    if advice is None:
        check_batches_per_step(tmp_path, *now)
        return
    with pytest.raises(RunError) as error:
        check_batches_per_step(tmp_path, *now)
    assert str(error.value).endswith(f"; {advice}")
    assert f"a step was {before[0] * before[1]} batches (train.accumulate {before[0]} × " in str(error.value)
    assert f"would be {now[0] * now[1]} (train.accumulate {now[0]} × " in str(error.value)


def test_accumulate_cannot_change_alone(configure: Configure, tmp_path: Path) -> None:
    train(configure(*SHORT), tmp_path / "run")
    before = (tmp_path / "run" / "config.toml").read_bytes()
    with pytest.raises(RunError, match=r"a step was 2 batches .* set train\.accumulate=2"):
        train(configure(*SHORT, "train.steps=9", "train.accumulate=4"), tmp_path / "run")
    assert (tmp_path / "run" / "config.toml").read_bytes() == before
