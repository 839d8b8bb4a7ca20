"""A small corpus, tiny configurations, and a token store that lives as long as a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dragoman.runs.tasks import config
from dragoman.runs.tasks.config import Config
from tests.training.kill_driver import table, write_pairs

Configure = Callable[..., Config]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return write_pairs(tmp_path / "pairs.tsv")


@pytest.fixture
def configure(pairs: Path) -> Configure:
    """A configuration of a tiny run, with `place=value` settings on top."""

    def build(*overrides: str, case: str = "ema", data: Path | None = None) -> Config:
        return config.build(table(data or pairs, case), overrides)

    return build
