"""The automatic choice on a slow machine: a smaller model, a night, and one sentence about what is given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.auto import machine
from dragoman.auto.estimates import NIGHT, time_lines
from dragoman.auto.machine import configure_for_machine
from tests.conftest import words

pytestmark = pytest.mark.usefixtures("cached")


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "LONG_PLAN", {"cpu": 0, "cuda": 0})
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words(80)))
    return path


def nights(monkeypatch: pytest.MonkeyPatch, *values: float) -> None:
    """Let measurements take so many nights, one after the other."""
    found = iter(values)
    monkeypatch.setattr(machine, "training_seconds", lambda *given: NIGHT * next(found))


def test_a_plan_of_weeks_gets_a_smaller_model_and_a_night(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nights(monkeypatch, 40.0, 8.0, 2.0)
    config, reasons = configure_for_machine(str(pairs), ["train.device=cpu"])
    assert config.train.minutes == 600
    assert config.model.encoder.width < 256  # transformer-tiny
    assert "would take about 400 hours" in reasons[-1]
    assert "preset=transformer-tiny and train.minutes=600" in reasons[-1]
    assert "50% of its steps" in reasons[-1]
    again = configure_for_machine(str(pairs), ["train.device=cpu"])  # measures nothing more, as for a run that resumes
    assert again == (config, reasons)


def test_a_plan_of_a_few_nights_keeps_its_model(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nights(monkeypatch, 2.5)
    plain, _ = machine.configure(str(pairs), ["train.device=cpu"])
    config, reasons = configure_for_machine(str(pairs), ["train.device=cpu"])
    assert (config.model, config.train.minutes) == (plain.model, 600)
    assert "preset=" not in reasons[-1]


@pytest.mark.parametrize("asked", [("train.steps=30",), ("train.minutes=2000",), ("task=classify",)])
def test_who_sets_the_length_gets_it(asked: tuple[str, ...], pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nights(monkeypatch)  # measuring would be an error
    assert not any("machine:" in reason for reason in configure_for_machine(str(pairs), asked)[1])


def test_a_night_is_no_reason_to_change_anything(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nights(monkeypatch, 0.9)
    overrides = ["train.device=cpu"]
    assert configure_for_machine(str(pairs), overrides) == machine.configure(str(pairs), overrides)


def test_check_warns_of_weeks(pairs: Path) -> None:
    config: Any = machine.configure(str(pairs), ["train.device=cpu"])[0]
    lines = list(time_lines(40 * NIGHT, config, torch.device("cpu")))
    assert lines[1].startswith("warning: training takes about 16.7 days on cpu")
    limited: Any = machine.configure(str(pairs), ["train.device=cpu", "train.minutes=60"])[0]
    (line,) = time_lines(40 * NIGHT, limited, torch.device("cpu"))
    assert "train.minutes = 60 ends it at 0%" in line
    assert len(list(time_lines(NIGHT, config, torch.device("cpu")))) == 1
