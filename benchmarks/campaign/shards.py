"""Shards whose input or run is edited between and during work, and whose workers are killed.

A case cuts a random file into shards and lets workers predict them, each in a forked process that is killed (kill -9)
after a random time. In between, one byte of the input changes at a random place, its size and time stay the same, or a
file of the run or an option changes. The job must then be refused, and go on once the change is taken back; the outputs
at the end must be those of one pass. The run is the classical `copy`.

python benchmarks/campaign/shards.py [CASES] [--seed S] [--processes P] [--seconds S] [--output FAILURES]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.campaign.lanes import Lanes, Outcome, add_options, die_with_parent, scratch
from dragoman.base.errors import ConfigError, DragomanError
from dragoman.decoding.options import DecodingOptions
from dragoman.inference import shards as shard_work
from dragoman.inference.shards import Job
from dragoman.runs import train
from dragoman.runs.tasks.config import build
from dragoman.training.display import Display

WORDS = [f"{first}{second}" for first in "abcdefgh" for second in "abcdefgh"]
CHANGES = ("byte", "byte", "byte", "longer", "data.json", "calibration.json", "options")
ROUNDS = 4
DONE, REFUSED, FAILED = 0, 2, 3  # exit codes of a worker


def make_run(folder: Path) -> Path:
    """A run that copies."""
    rows = (f"{first} {second}\t{first}\n" for first, second in pairwise(WORDS))
    (folder / "pairs.tsv").write_text("".join(rows), encoding="ascii")
    os.environ["DRAGOMAN_CACHE"] = str(folder / "cache")
    table = {"task": "translate", "preset": "copy", "data": {"train": str(folder / "pairs.tsv")}}
    train(build(table), folder / "run", Display(quiet=True))
    return folder / "run"


def write_input(path: Path, lines: list[str], draw: random.Random, large: bool) -> Path:
    """A file of lines; a large one has megabytes that the model does not read."""
    if not large:
        path = path.with_suffix(".txt")
        path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        return path
    path = path.with_suffix(".jsonl")
    notes = {row: "".join(draw.choices("abcdefgh", k=900)) * 1000 for row in draw.sample(range(len(lines)), 3)}
    rows = ({"source": line, "note": notes.get(row, "")} for row, line in enumerate(lines))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii")
    return path


def worker(job: Job, seconds: float) -> int | None:
    """Let a forked process predict shards; killed after so many seconds it has no exit code."""
    child = os.fork()
    if not child:
        die_with_parent()
        try:
            shard_work.WINDOW = 3  # many writes in a shard, so that a kill finds it half done
            shard_work.work(job)
            os._exit(DONE)
        except DragomanError:
            os._exit(REFUSED)
        except BaseException:
            os._exit(FAILED)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def change(kind: str, job: Job, draw: random.Random) -> tuple[Job, Path, bytes]:
    """Change the input, the run or an option; returns the job as it is now, and what takes the change back."""
    fresh = replace(job)  # nothing of what it read before is kept
    path = Path(job.run) / kind if kind.endswith(".json") else Path(job.file)
    before, times = path.read_bytes() if path.exists() else b"", path.stat() if path.exists() else None
    if kind == "options":
        return replace(job, options=replace(job.options, beam=2)), path, before
    data = bytearray(before)
    if kind == "byte":
        letters = [index for index, byte in enumerate(data) if chr(byte).isalpha()]
        place = draw.choice(letters)
        data[place] = ord(draw.choice([letter for letter in "abcdefgh" if ord(letter) != data[place]]))
    else:
        data += b"ab\n" if kind == "longer" else b" "
    path.write_bytes(data)
    if times is not None:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return fresh, path, before


def restore(path: Path, before: bytes) -> None:
    """Take a change back."""
    if before:
        path.write_bytes(before)
    else:
        path.unlink(missing_ok=True)


def shard_case(number: int, folder: Path, run: Path, seed: int) -> Outcome:
    """One file with its kills and changes."""
    draw, counts = random.Random(f"{seed} {number}"), Counter[str]()
    own = folder / f"run-{os.getpid()}"
    if not own.exists():
        shutil.copytree(run, own)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(1, 6))) for _ in range(draw.randint(20, 400))]
    file = write_input(folder / f"{number}", lines, draw, large=number % 3 == 0)
    options = DecodingOptions(beam=1, scores=False)
    size = max(draw.randint(50, 2000), file.stat().st_size // 20)
    job = Job(str(own), str(file), str(folder / f"out-{number}"), options, device="cpu", shard_bytes=size)
    job.open()
    for _ in range(ROUNDS):
        code = worker(replace(job), draw.uniform(0.0, 1.0))
        counts["kills" if code is None else "ended"] += 1
        if code not in (None, DONE):
            return Outcome(counts, f"a worker ended with {code}")
        kind = draw.choice(CHANGES)
        changed, path, before = change(kind, job, draw)
        counts[f"changed {kind}"] += 1
        during = worker(changed, 10.0)
        try:
            replace(changed).open()
            accepted = True
        except ConfigError:
            accepted = False
        restore(path, before)
        if accepted or during != REFUSED:
            return Outcome(counts, f"{kind} changed, but the job went on (exit code {during})")
    if worker(replace(job), 60.0) != DONE:
        return Outcome(counts, "the job did not end")
    found = [line for shard in job.shards for line in job.output(shard).read_text(encoding="utf-8").splitlines()]
    wrong = next((row for row, pair in enumerate(zip(found, lines, strict=False)) if pair[0] != pair[1]), None)
    if len(found) != len(lines) or wrong is not None:
        return Outcome(counts, f"{len(found)} outputs for {len(lines)} lines, the first wrong one {wrong}")
    counts["lines"] += len(lines)
    return Outcome(counts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="?", type=int, default=300)
    add_options(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with scratch("shards") as folder:
        run = make_run(Path(folder))
        lanes = Lanes("shards", Path(folder), arguments, 300)
        report = lanes.run(arguments.cases, lambda number, own: shard_case(number, own, run, arguments.seed))
    return report.show()


if __name__ == "__main__":
    sys.exit(main())
