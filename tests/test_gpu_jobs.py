"""benchmarks/gpu_jobs.py: the order of jobs, what is stopped, what the next call does again, what is packed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "gpu_jobs.py"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the jobs are commands of a POSIX shell")


def call(folder: Path, *more: str) -> str:
    paths = [sys.executable, SCRIPT, folder / "jobs.json", "--work", folder / "work", "--pack", folder]
    command = [*map(str, paths), *more]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout


def test_the_next_call_goes_on_and_the_last_one_scores_what_was_stopped(tmp_path: Path) -> None:
    work = tmp_path / "work"
    training = f"trap 'echo saved; exit 143' TERM; echo step >> {work}/steps.txt; sleep 30 & wait"
    jobs = [
        {"name": "score", "command": f"cat {work}/steps.txt > {work}/score.json", "needs": ["long"], "short": True},
        {"name": "second", "command": f"cat {work}/first.txt", "needs": ["first"]},
        {"name": "first", "command": f"echo made >> {work}/first.txt; echo x > {work}/run.safetensors"},
        {"name": "long", "command": training},
    ]
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": jobs}), encoding="utf-8")
    out = call(tmp_path, "--stop", "2", "--deadline", "100")
    assert out.startswith("4 jobs, 0 finished before")
    assert re.search(r"second ended after \d+ s: made", out)
    assert re.search(r"long stopped after \d+ s: saved", out)
    assert not (work / "score.json").exists()
    out = call(tmp_path, "--stop", "2", "--deadline", "100", "--last")
    assert out.startswith("2 jobs, 2 finished before")
    assert "score ended" in out
    assert (work / "first.txt").read_text(encoding="utf-8") == "made\n"
    assert (work / "score.json").read_text(encoding="utf-8") == "step\nstep\n"
    with tarfile.open(tmp_path / "results.tar.gz") as archive:
        names = archive.getnames()
    assert {"score.json", "first.txt", "logs/long.log", "done/first"} <= set(names)
    assert not any(name.endswith(".safetensors") for name in names)
