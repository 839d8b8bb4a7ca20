"""The scripts of docs/how-to/library.md run as they stand there, and the search explains what it misses in a model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "how-to" / "library.md").read_text(encoding="utf-8")
SCRIPTS = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder."""
    (folder / "script.py").write_text(code, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DRAGOMAN_CACHE": "cache", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "script.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.page
def test_our_data_and_model_in_a_loop_of_the_readers_own(tmp_path: Path) -> None:
    printed = subprocess.run([sys.executable, "examples/number_names.py"], cwd=ROOT, capture_output=True, text=True)
    pairs = printed.stdout.splitlines(keepends=True)[:300]
    (tmp_path / "pairs.tsv").write_text("".join(pairs), encoding="utf-8")
    done = run(tmp_path, SCRIPTS["training_loop.py"])
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(?:17|45|250) (.+) -\d\.\d+$", done.stdout, re.MULTILINE) == [
        "seventeen", "forty-five", "two hundred fifty",
    ]  # fmt: skip


@pytest.mark.page
def test_the_readers_own_model_in_our_search(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPTS["own_model.py"])
    assert done.returncode == 0, done.stderr
    outputs = re.findall(r"^\[(.*)\] -\d+\.\d\d$", done.stdout, re.MULTILINE)
    assert outputs[::2] == ["7, 6, 5, 4", "4, 12, 9, 9"], done.stdout
    assert len(outputs) == 4


def run_here(script: str) -> dict[str, object]:
    """Run a script in this process, with two training steps in place of all, and return its names."""
    names: dict[str, object] = {"__name__": "own_model"}
    exec(compile(script.replace("range(200)", "range(2)"), "own_model.py", "exec", dont_inherit=True), names)
    return names


def test_the_snippet_with_a_method() -> None:
    snippet = re.search(r"`(search\(.*?\))` samples", PAGE)
    assert snippet
    script = f"from dragoman.decoding.sampling import Sampling\n{SCRIPTS['own_model.py']}outputs = {snippet[1]}\n"
    outputs = run_here(script)["outputs"]
    assert isinstance(outputs, list)
    assert len(outputs) == 2


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (".log_softmax(-1)", "", "Reverser.step: found scores whose exponentials sum to"),
        ("max_positions = None", "limit = None", "Reverser: found no attribute 'max_positions'"),
        ("def reorder", "def order", "Reverser.start: found a state of type Hidden without the method 'reorder'"),
    ],
)
def test_a_mistake_in_the_model_is_one_line(right: str, wrong: str, message: str) -> None:
    script = SCRIPTS["own_model.py"]
    assert right in script
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message)}[^\n]*$"):
        run_here(script.replace(right, wrong))
