"""A part of the hostile commands; benchmarks/hostile_commands.py runs all of them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TrainedFolder, call, quiet_machine
from tests.hostile import Case, cases, prepare

EVERY = 9  # so many cases are left out after each that runs


@pytest.fixture(scope="module")
def folder(trained_folder: TrainedFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    here = tmp_path_factory.mktemp("hostile")
    shutil.copy(trained_folder.folder / "pairs.tsv", here / "pairs.tsv")
    shutil.copytree(trained_folder.run, here / "run")
    prepare(here)
    with quiet_machine(trained_folder.folder / "cache"), contextlib.chdir(here):
        yield here


@pytest.mark.parametrize("case", [*cases("run")][:: EVERY + 1], ids=lambda case: case.name)
def test_a_hostile_command_ends_as_expected(folder: Path, case: Case) -> None:
    before = {path: path.read_bytes() for path in folder.glob("*.tsv") if path.is_file()}
    result = call(*case.arguments, stdin=case.stdin)
    assert result.code in case.codes, result.err
    assert "internal error" not in result.err
    assert result.code == 0 or result.err.strip()
    assert case.answers is None or len(result.lines) == case.answers
    assert {path: path.read_bytes() for path in before} == before


def test_there_are_hundreds_of_cases() -> None:
    assert len(list(cases("run"))) >= 370
