"""Searches for the tests: a small one as a command, and one whose jobs have given outcomes."""

from __future__ import annotations

import math
import multiprocessing
import sys
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import pytest

from dragoman.auto.configure import configure
from dragoman.auto.search.run import (
    Search,
)
from dragoman.auto.search.state import SearchState, load_search
from dragoman.auto.search.worker import Job
from dragoman.auto.trial import Outcome
from dragoman.base import config as settings
from tests.conftest import call, words, write_rows
from tests.processes import CONTEXT

TINY = [
    "train.steps=6", "train.validate_every=2", "train.save_every=1", "train.decode=10", "train.batch_tokens=128",
    "train.device=cpu",
]  # fmt: skip


def outcome(score: float, error: str = "") -> Outcome:
    """Of a job that trained 100 steps at 10 a second."""
    return Outcome(
        -math.inf if error else score, 0 if error else 100, 10.0, 0.0, 1.0, 0.0 if error else 10.0, 7, error=error
    )


class FakeSearch(Search):
    """A search whose jobs have these outcomes: the name of a run, then those of its jobs in turn."""

    def __init__(self, folder: Path, **results: list[Outcome]) -> None:
        super().__init__(folder, lambda line: None, lambda state: None)
        self.results = results

    def _outcomes(self, pool: Any, jobs: Any, *limits: Any) -> Any:
        for trial, job in jobs:
            yield trial, job, self.results[Path(job.folder).name.removesuffix("-measured")].pop(0)

    def _use_rest(self, state: SearchState, pool: Any, trained: Any) -> None:
        """Jobs that take no time would leave all of it."""

    def _place(self, state: SearchState) -> None:
        pass


def command(place: Path, run: Path) -> list[str]:
    """The search as a command of its own process."""
    settings = [*TINY, f"data.cache={place / 'cache'}", f"data.valid={place / 'valid.tsv'}"]
    options = ["--trials", "2", "--ensemble", "2", "--run", str(run), "--quiet"]
    return [sys.executable, "-m", "dragoman", "train", str(place / "pairs.tsv"), *options, *settings]


def fork_workers(patch: pytest.MonkeyPatch, cache: Path) -> None:
    """Let searches in this process fork their workers from one that has imported torch; other searches spawn them."""

    def context(method: str) -> ForkServerContext:
        with pytest.MonkeyPatch.context() as variables:  # workers have those that the first one found
            variables.setenv("DRAGOMAN_CACHE", str(cache))
            ensure_running()
        return CONTEXT

    patch.setattr(multiprocessing, "get_context", context)


def run_search(place: Path, run: Path) -> None:
    """Search until the end, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        fork_workers(patch, place / "cache")
        result = call(*command(place, run)[3:])
    assert result.code == 0, result.err


def scores(run: Path) -> list[tuple[str, list[float], float | None, int]]:
    """What the leaderboard follows from."""
    return [(trial.name, trial.scores, trial.final, trial.step) for trial in load_search(run).ranking()]


def job_for(folder: Path, count: int, given: list[str], until: int) -> Job:
    """A job that trains the choice for so many reversed words, in the folder's part "a"."""
    rows = [(word, word[::-1]) for word in words(count)]
    config, _ = configure(str(write_rows(folder / "pairs.tsv", rows)), given)
    (folder / "a.toml").write_text(settings.dump(config))
    return Job(str(folder / "a.toml"), str(folder / "a"), until, 1, "cer")
