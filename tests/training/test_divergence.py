"""Trainings whose loss leaves the ground are told so, once; healthy ones are not."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from dragoman.base.errors import Interrupted
from dragoman.runs import train
from dragoman.training.display import Display
from dragoman.training.metrics_log import DivergenceDetector
from dragoman.training.trainer import Trainer
from tests.training.conftest import Configure

OFTEN = ("train.steps=12", "train.validate_every=6", "train.log_every=2", "train.decode=0", "train.save_every=100")


def warnings(configure: Configure, run: Path, *overrides: str, case: str = "ema") -> list[str]:
    """What a quiet training says."""
    said = io.StringIO()
    train(configure(*OFTEN, *overrides, case=case), run, Display(said, quiet=True))
    return said.getvalue().splitlines()


@pytest.mark.parametrize("case", ["ema", "recurrent"])
def test_a_huge_learning_rate_is_told_once(case: str, configure: Configure, tmp_path: Path) -> None:
    told = warnings(configure, tmp_path / "run", "train.optimizer.learning_rate=10", case=case)
    assert len(told) == 1, told
    assert told[0].startswith("warning: training has diverged: the loss was ")
    assert "lower train.optimizer.learning_rate (now 10)" in told[0]


@pytest.mark.parametrize("change", ["learning_rate=0.05", "warmup=0"])
def test_healthy_trainings_are_left_in_peace(change: str, configure: Configure, tmp_path: Path) -> None:
    assert warnings(configure, tmp_path / "run", f"train.optimizer.{change}", "train.log_every=1") == []


def test_a_run_that_goes_on_knows_where_it_began(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, step = tmp_path / "run", Trainer._step

    def stopping(self: Trainer) -> None:
        step(self)
        if self.state.step == 4:
            self._save()
            raise Interrupted(15, 4)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stopping)
        with pytest.raises(Interrupted):
            warnings(configure, run, "train.optimizer.learning_rate=10")
    assert len(warnings(configure, run, "train.optimizer.learning_rate=10")) == 1


@pytest.mark.parametrize(
    ("losses", "warns"),
    [
        ([2.0, 5.1, 5.1, 5.1], True),
        ([2.0, 4.9, 4.9, 4.9], False),  # not far enough
        ([2.0, 5.1, 5.1, 4.9], False),  # coming back
        ([2.0, 4.9, 900.0, 900.0], False),  # a spike, as far as can be told
        ([2.0, 1.0, 5.1, 5.1, 5.1], True),  # late
        ([2.0, 9.0], True),  # no more lines than that
        ([9.0], False),  # the first alone
        ([0.02, 0.9, 0.9, 0.9], False),  # of trained weights
        ([0.0, 1.7, 1.7, 1.7], False),  # CTC had no room for any target of the first batch
        ([-3.0, -2.0, -2.0, -2.0], False),
    ],
)
def test_what_is_far_above_the_first_loss(losses: list[float], warns: bool) -> None:
    divergence = DivergenceDetector()
    for step, loss in enumerate(losses, 1):
        divergence.add(step, loss)
    assert (divergence.warning(1.0) is not None) == warns
    assert divergence.warning(1.0) is None, "once"
