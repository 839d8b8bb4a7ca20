"""The verbs of Python that train: they do what their commands do, also in a script without a guard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from tests.conftest import call, words, write_rows

TINY = ("preset=transformer-tiny", "train.steps=4", "train.validate_every=2")


@pytest.fixture
def pairs(cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_rows(tmp_path / "pairs.tsv", [(word, word.upper()) for word in words(60)])


def test_check_reports_what_the_command_prints(pairs: Path) -> None:
    found = dragoman.check("pairs.tsv", *TINY)
    said = call("check", "pairs.tsv", *TINY)
    assert said.code == 0
    # Times and memory are measured anew.
    shown = [line for line in said.lines if not line.startswith(("time:", "memory:", "all is well", "the run can"))]
    assert [line for line in found.lines if not line.startswith(("time:", "memory:"))] == shown
    assert found.warnings == sum(line.startswith("warning") for line in said.lines)
    with pytest.raises(dragoman.DragomanError, match="no such file"):
        dragoman.check("pears.tsv")


def test_train_resumes_a_run_folder(pairs: Path) -> None:
    first = dragoman.train("pairs.tsv", "run", *TINY, quiet=True)
    again = dragoman.train("run", None, "train.steps=6", quiet=True)
    assert again.run.folder == first.run.folder
    assert again.config.train.steps == 6
    assert again.run.metrics()[-1]["step"] == 6
    with pytest.raises(dragoman.RunError, match="already has 6 steps"):
        dragoman.train("run", None, "train.steps=4", quiet=True)


def test_distil_trains_a_student(pairs: Path) -> None:
    dragoman.train("pairs.tsv", "run", *TINY, quiet=True)
    lines = dragoman.distil("run", "student", quiet=True)
    assert lines[0].startswith("teacher (1 model) → student")
    assert dragoman.load("student").predict(["abc"])[0].text is not None
    with pytest.raises(dragoman.DragomanError, match="missing"):
        dragoman.distil("run", "other", options=dragoman.DistilOptions(unlabelled="missing.txt"))


def test_a_search_in_a_script_without_a_guard_runs_the_script_once(pairs: Path) -> None:
    script = pairs.with_name("script.py")
    script.write_text(
        "import dragoman\n"
        "print('begun', flush=True)\n"
        "state = dragoman.search('pairs.tsv', 'found', 'train.steps=4', quiet=True,\n"
        "                        options=dragoman.SearchOptions(trials=1))\n"
        "print(len(state.trials) > 0, state.done)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(dragoman.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[:-1] == ["begun", "True True"]
    assert dragoman.load("found").predict(["abc"])
