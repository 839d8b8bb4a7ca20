"""One trial: trained, resumed, kept when complete, refused with other settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.auto.trial import state_of, train_trial
from dragoman.base import RunError
from dragoman.runs.tasks import load
from dragoman.training import TrainingState
from dragoman.training.trainer import Trainer
from tests.auto.searches import TINY, job_for


def test_a_trial_goes_on_after_a_pause_and_stays_as_it_is_when_complete(cached: Path, tmp_path: Path) -> None:
    config, said = load(job_for(tmp_path, 60, TINY, until=0).config), list[str]()

    def pause(state: TrainingState) -> bool:
        return state.step >= 3

    first = train_trial(config, tmp_path / "a", pause=pause)
    assert (first.step, first.complete) == (3, False)
    last = train_trial(config, tmp_path / "a", name="a", say=said.append)
    assert (last.step, last.complete) == (6, True)
    again = train_trial(config, tmp_path / "a", name="a", say=said.append)
    assert again == last._replace(loading=0.0, overhead=0.0)
    assert said == [f"a: 6 steps ({tmp_path / 'a'})", f"a: trained already ({tmp_path / 'a'})"]
    with pytest.raises(RunError, match=r"started with other settings \(model\.label_smoothing was"):
        train_trial(replace(config, model=replace(config.model, label_smoothing=0.3)), tmp_path / "a")


def test_a_trial_that_was_killed_in_its_last_validation_validates(
    cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compare` took a run with a checkpoint of the last step for complete, and scored older weights or none."""
    given = [*TINY, "train.validate_every=6", "train.save_every=6"]
    config = load(job_for(tmp_path, 60, given, until=0).config)

    def killed(trainer: Trainer, signals: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_validate", killed)
        with pytest.raises(KeyboardInterrupt):
            train_trial(config, tmp_path / "a")
    state = state_of(tmp_path / "a")
    assert state
    assert (state.step, state.validated_step) == (6, 0)
    assert train_trial(config, tmp_path / "a").complete
    assert (tmp_path / "a" / "weights.safetensors").exists()
