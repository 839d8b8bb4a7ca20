"""The scripts of docs/how-to/python.md run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "how-to" / "python.md").read_text(encoding="utf-8")
SCRIPTS = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
NEEDS = {"processes.py": ("joblib", "pandas", "pyarrow"), "tune.py": ("optuna",)}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    for name, script in SCRIPTS.items():
        (folder / name).write_text(script, encoding="utf-8")
    return folder


def run(work: Path, name: str) -> str:
    variables = {"PYTHONPATH": str(ROOT), "DRAGOMAN_CACHE": str(work / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, name], cwd=work, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def test_the_page_has_these_scripts() -> None:
    assert [*SCRIPTS] == ["train.py", "processes.py", "csv_tracker.py", "tune.py"]
    assert PAGE.count("```python") == len(SCRIPTS)


@pytest.mark.page
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_scripts_run(work: Path) -> None:
    said = run(work, "train.py").splitlines()
    assert [line.split()[0] for line in said[:3]] == ["1", "10", "20"]
    assert 0 <= float(said[-1]) <= 1
    for package in NEEDS["processes.py"]:
        pytest.importorskip(package)
    run(work, "processes.py")
    assert (work / "outputs.parquet").stat().st_size > 500
    run(work, "csv_tracker.py")
    assert (work / "runs" / "times" / "losses.csv").read_text(encoding="utf-8").startswith("25,")


@pytest.mark.page
def test_optuna_prunes_trials(work: Path) -> None:
    pytest.importorskip("optuna")
    said = run(work, "tune.py")
    assert re.search(r"Trial \d pruned", said)
    assert re.search(r"^\{'rate': ", said, re.MULTILINE)
