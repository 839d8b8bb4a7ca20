"""A run that is killed or stopped at any kind of moment ends with the same bits as one that nothing stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import made_once
from tests.processes import Command
from tests.training import kill_matrix


@pytest.fixture(scope="session")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is wrong with each cell, from one process for all."""

    def stop_and_resume(place: Path) -> None:
        code, said = Command([place], script=Path(kill_matrix.__file__)).finish(500)
        assert code == 0, said

    place = made_once(tmp_path_factory, "kill-matrix", stop_and_resume)
    found: dict[str, str] = json.loads((place / "found.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cell", [f"{name}, {kind}" for name, kind, _ in kill_matrix.cells()])
def test_a_run_stopped_at_any_moment_resumes_to_the_same_bits(cell: str, matrix: dict[str, str]) -> None:
    assert matrix[cell] == ""
