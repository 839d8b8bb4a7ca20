"""Run many commands side by side on one GPU, within a given time, and go on with them in the next call.

    python benchmarks/gpu_jobs.py jobs.json --work runs/gpu --slots 16 --stop 500 --deadline 540 --pack "$OUT"

The file (.json or .toml) has a list `jobs`; those first in it start first:

    [[jobs]]
    name = "teacher-1"
    command = "python -m dragoman train teacher.toml train.seed=1 --run runs/gpu/teacher-1"
    [[jobs]]
    name = "teacher-1-score"
    command = "python -m dragoman evaluate runs/gpu/teacher-1 test.tsv --json > runs/gpu/teacher-1.json"
    needs = ["teacher-1"]  # which must have ended well
    short = true           # takes seconds: may still start when the long jobs were stopped
    slots = 1              # how many of the places it takes, such as 6 for a command that trains six models at once

Small trainings leave most of a GPU idle. CUDA's multi-process service lets the kernels of several processes run at the
same time; where it is installed, it is started for the jobs. A finished job leaves a marker in the work folder, and the
next call skips it. After --stop seconds long jobs get SIGTERM, upon which a training saves a checkpoint; the next call
starts their commands again. The shell of a command with several parts does not wait for them then: write `exec` before
its training. With --last there is no next call: short jobs that need a stopped job, such as those that score its best
weights so far, run before the deadline.

--pack writes results.tar.gz there: logs, scores, metrics and outputs of the work folder, no weights and nothing large.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

RESULTS = {".json", ".jsonl", ".log", ".txt", ".toml", ".out"}
LEFT_OUT = {"tokenizer", "checkpoints"}  # folders
LARGEST = 2 << 20  # bytes of a file that is packed
GRACE = 15.0  # seconds before the deadline at which all that still runs gets SIGTERM


@dataclass(frozen=True)
class Job:
    """A command of the shell; `needs` are names of jobs that come first."""

    name: str
    command: str
    needs: tuple[str, ...] = ()
    slots: int = 1
    short: bool = False


def read_jobs(path: Path) -> list[Job]:
    text = path.read_text(encoding="utf-8")
    rows = (tomllib.loads(text) if path.suffix == ".toml" else json.loads(text))["jobs"]
    jobs = [Job(**row | {"needs": tuple(row.get("needs", ()))}) for row in rows]
    names = [job.name for job in jobs]
    unknown = {need for job in jobs for need in job.needs} - set(names)
    if unknown or len(set(names)) < len(names):
        raise SystemExit(f"{path}: found needs without a job, {sorted(unknown)}, or a name twice in {names}")
    return jobs


class Runner:
    """Starts the jobs of a list, waits for them and stops them; what has ended is remembered in the work folder."""

    def __init__(self, jobs: list[Job], work: Path, slots: int, last: bool) -> None:
        self.work, self.slots, self.last = work, slots, last
        self.started = time.monotonic()
        for folder in ("done", "logs"):
            (work / folder).mkdir(parents=True, exist_ok=True)
        self.done = {job.name for job in jobs if (work / "done" / job.name).exists()}
        self.waiting = [job for job in jobs if job.name not in self.done]
        self.running: dict[Job, tuple[subprocess.Popen[bytes], float]] = {}
        self.stopped = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def run(self, stop: float, deadline: float) -> None:
        """Run until all jobs have ended, at most for so many seconds."""
        try:
            while self.waiting or self.running:
                if self.seconds >= max(0.0, deadline - GRACE):
                    break
                if not self.stopped and (self.seconds >= stop or not (self.running or self.ready())):
                    self.stop_long_jobs()
                for job in self.ready():
                    self.start(job)
                if not self.running and not self.ready():
                    break
                time.sleep(0.05)
                self.collect()
        finally:
            self.end_all(max(1.0, min(GRACE, deadline - self.seconds)))

    def stop_long_jobs(self) -> None:
        """Ask the long jobs to save and end; without a further call the short ones that wait may still start."""
        self.stopped = True
        self.waiting = [job for job in self.waiting if job.short]
        for job in self.running:
            if not job.short:
                self.send(job, signal.SIGTERM)

    def ready(self) -> list[Job]:
        """The jobs that can start now, the first of the list first."""
        free = self.slots - sum(job.slots for job in self.running)
        open_jobs = {job.name for job in (*self.waiting, *self.running)}
        found: list[Job] = []
        for job in self.waiting:
            met = set(job.needs) <= self.done or (self.stopped and self.last and not open_jobs & set(job.needs))
            if met and (job.slots <= free or not (self.running or found)):
                found.append(job)
                free -= job.slots
        return found

    def start(self, job: Job) -> None:
        self.waiting.remove(job)
        with (self.work / "logs" / f"{job.name}.log").open("ab") as log:  # a process group of its own, to be stopped
            process = subprocess.Popen(
                job.command, shell=True, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.running[job] = process, self.seconds

    def collect(self) -> None:
        """Print a line for every job that has ended, and remember it."""
        for job, (process, began) in list(self.running.items()):
            if (code := process.poll()) is None:
                continue
            del self.running[job]
            outcome = "ended" if code == 0 else "stopped" if self.stopped and not job.short else f"failed ({code})"
            line = f"{job.name} {outcome} after {self.seconds - began:.0f} s: {self.last_line(job)}"
            print(f"[{self.seconds:4.0f} s] {line}", flush=True)
            if code == 0:
                self.done.add(job.name)
                (self.work / "done" / job.name).write_text(f"{line}\n", encoding="utf-8")

    def last_line(self, job: Job) -> str:
        text = (self.work / "logs" / f"{job.name}.log").read_bytes()[-4000:].decode(errors="replace")
        return next((line.strip()[-300:] for line in reversed(text.splitlines()) if line.strip()), "")

    def send(self, job: Job, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.running[job][0].pid, number)

    def end_all(self, grace: float) -> None:
        """Stop what still runs: SIGTERM, and after the grace SIGKILL."""
        self.stopped = True
        for job in self.running:
            self.send(job, signal.SIGTERM)
        end = time.monotonic() + grace
        while self.running and time.monotonic() < end:
            time.sleep(0.05)
            self.collect()
        for job in self.running:
            print(f"[{self.seconds:4.0f} s] {job.name} killed: {self.last_line(job)}", flush=True)
            self.send(job, signal.SIGKILL)


@contextmanager
def multi_process_service() -> Iterator[None]:
    """CUDA's multi-process service, where it is installed and not started yet."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield
        return
    for name in ("PIPE", "LOG"):  # in the folder of temporary files, since the path of a socket must be short
        os.environ[f"CUDA_MPS_{name}_DIRECTORY"] = tempfile.mkdtemp(prefix="mps-")
    subprocess.run([control, "-d"], check=False)
    try:
        yield
    finally:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run([control], input=b"quit -t 2\n", check=False, timeout=10)


def pack(work: Path, folder: Path) -> None:
    """The small results of the work folder in one archive."""
    path = folder / "results.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file in sorted(work.rglob("*")):
            usable = file.suffix in RESULTS or file.parent.name == "done"
            if (
                usable
                and not LEFT_OUT & set(file.parts)
                and file.is_file()
                and not file.is_symlink()
                and file.stat().st_size <= LARGEST
            ):
                archive.add(file, file.relative_to(work))
    print(f"{path}: {path.stat().st_size:,} bytes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path, help="a .json or .toml file")
    parser.add_argument("--work", type=Path, default=Path("runs/gpu"), help="folder of logs, markers and results")
    parser.add_argument("--slots", type=int, default=16, help="jobs side by side")
    parser.add_argument("--stop", type=float, default=500.0, help="seconds after which long jobs are stopped")
    parser.add_argument("--deadline", type=float, default=540.0, help="seconds after which everything is stopped")
    parser.add_argument("--last", action="store_true", help="no further call follows: score what was stopped")
    parser.add_argument("--pack", type=Path, help="folder in which results.tar.gz is written")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the jobs are stopped and packed, too
    runner = Runner(read_jobs(given.jobs), given.work, given.slots, given.last)
    print(f"{len(runner.waiting)} jobs, {len(runner.done)} finished before", flush=True)
    try:
        with multi_process_service():
            runner.run(given.stop, given.deadline)
    finally:
        left = [job.name for job in runner.waiting]
        print(f"{len(runner.done)} jobs finished; not started: {' '.join(left) or 'none'}", flush=True)
        if given.pack:
            pack(given.work, given.pack)


if __name__ == "__main__":
    main()
