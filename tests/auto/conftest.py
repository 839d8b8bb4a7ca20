"""A finished search, which the files of its tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.auto.searches import run_search
from tests.conftest import made_once, words, write_rows


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search over two configurations in processes of its own, with an ensemble of two."""

    def search(place: Path) -> None:
        some = words(90, seed=3, shortest=2, longest=4, letters="abcdef")
        write_rows(place / "pairs.tsv", [(word, word.upper()) for word in some])
        write_rows(place / "valid.tsv", [(word, word.upper()) for word in some[:30]] * 6)
        run_search(place, place / "run")

    return made_once(tmp_path_factory, "search", search)
