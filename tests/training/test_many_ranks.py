"""The order of batches in jobs of 64 and 1,024 processes, with the trainer's own step and no model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dragoman.base.errors import RunError
from dragoman.data.batching import BatchPlan, EpochPlan
from dragoman.data.store import StoreWriter, TokenStore
from dragoman.runs import resume
from dragoman.training.checkpoints import TrainingState
from dragoman.training.config import TrainConfig
from dragoman.training.trainer import Trainer

ROWS = 6_000
Step = list[list[int]]  # the rows of every batch of a step, in the order of the batches


class Loader:
    """Hands out row numbers instead of batches; all ranks share the plan, which each would compute alike."""

    def __init__(self, store: TokenStore) -> None:
        self.plan = BatchPlan(store, budget=32, seed=1)
        self.epochs: dict[int, list[tuple[int, ...]]] = {}

    def epoch(self, epoch: int) -> list[tuple[int, ...]]:
        if epoch not in self.epochs:
            planned: EpochPlan = self.plan.epoch(epoch)
            self.epochs[epoch] = [tuple(rows.tolist()) for rows in planned]
        return self.epochs[epoch]

    def num_tokens(self, key: tuple[int, ...]) -> int:
        return len(key)

    def load(self, key: tuple[int, ...]) -> tuple[int, ...]:
        return key


class OneRank(Trainer):
    """One process of a job, with the batches that it has loaded as (step, number of the batch in the step, rows)."""

    def __init__(self, loader: Any, config: TrainConfig, rank: int, size: int, state: TrainingState) -> None:
        self.config, self.loader, self.state = config, loader, replace(state)
        self.processes: Any = SimpleNamespace(rank=rank, world_size=size)
        self.model = SimpleNamespace(training=True, set_step=lambda step: None)
        self.display: Any = SimpleNamespace(advance=lambda step: None)
        self._epoch, self._first_steps, self._started_before = None, [], 0.0
        self.loaded: list[tuple[int, int, list[int]]] = []
        self.train_step: Any = self._record

    def _record(self, loaded: Iterator[tuple[int, Any]], last: int, step: int, *rest: Any) -> None:
        self.loaded += [(step, index, list(rows)) for index, rows in loaded]

    def _log(self) -> None:
        pass


def job(loader: Loader, ranks: int, accumulate: int, steps: int, state: TrainingState) -> tuple[list[Step], Any]:
    """What all ranks together read in the next steps, and the state that they all have then."""
    config = replace(TrainConfig(), accumulate=accumulate, steps=10_000, log_every=10_000)
    read: dict[tuple[int, int], list[int]] = {}
    states = []
    for rank in range(ranks):
        process = OneRank(loader, config, rank, ranks, state)
        for _ in range(steps):
            process._step()
        for step, index, rows in process.loaded:
            assert (step, index) not in read, "two processes computed the same batch"
            read[step, index] = rows
        states.append(replace(process.state, seconds=0.0, starting=0.0))
    assert all(other == states[0] for other in states)
    numbers = sorted({step for step, _ in read})
    return [[read[step, index] for index in range(ranks * accumulate)] for step in numbers], states[0]


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Loader:
    lengths = np.random.default_rng(1).integers(1, 12, ROWS).tolist()
    folder = tmp_path_factory.mktemp("ranks") / "store"
    with StoreWriter(folder, 100, 100) as writer:
        writer.add([[4] * length for length in lengths], [[5] * length for length in lengths])
    return Loader(TokenStore(folder))


@pytest.mark.parametrize(("ranks", "accumulate"), [(64, 1), (64, 2), (1024, 1)])
def test_every_pair_is_read_once_an_epoch(loader: Loader, ranks: int, accumulate: int) -> None:
    batches = len(loader.epoch(0))
    assert batches % (ranks * accumulate)  # the last step of an epoch goes on with the next one
    steps = 1 + 2 * batches // (ranks * accumulate)
    read, state = job(loader, ranks, accumulate, steps, TrainingState())
    flat = [rows for step in read for rows in step]
    assert state.epoch >= 2
    for epoch in range(2):
        rows = [row for batch in flat[epoch * batches : (epoch + 1) * batches] for row in batch]
        assert sorted(rows) == list(range(ROWS))


def test_a_job_resumes_exactly_with_fewer_or_more_processes(loader: Loader) -> None:
    whole, _ = job(loader, 64, 1, 8, TrainingState())
    first, state = job(loader, 64, 1, 3, TrainingState())
    assert first == whole[:3]
    for ranks in (16, 64):
        assert job(loader, ranks, 64 // ranks, 5, state)[0] == whole[3:]


@pytest.mark.parametrize(("ranks", "advice"), [(48, "start 1024 processes"), (512, "set train.accumulate=2")])
def test_a_job_of_another_size_is_refused(ranks: int, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = TrainingState(step=3, accumulate=1, processes=1024)
    monkeypatch.setattr(resume, "newest_state", lambda folder: saved)
    with pytest.raises(RunError, match=f"a step was 1024 batches.*{advice}"):
        resume.check_batches_per_step(Path("runs/large"), 1, ranks)
    resume.check_batches_per_step(Path("runs/large"), 2, 512)
