"""A finished search, which the files of its tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.auto.searches import fork_workers, run_search
from tests.conftest import made_once, words, write_rows


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    fork_workers(monkeypatch, tmp_path_factory.getbasetemp() / "cache-of-workers")


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search over two configurations, with an ensemble of two."""

    def search(place: Path) -> None:
        some = words(90, seed=3, shortest=2, longest=4, letters="abcdef")
        write_rows(place / "pairs.tsv", [(word, word.upper()) for word in some])
        write_rows(place / "valid.tsv", [(word, word.upper()) for word in some[:30]] * 6)
        run_search(place, place / "run")

    return made_once(tmp_path_factory, "search", search)
