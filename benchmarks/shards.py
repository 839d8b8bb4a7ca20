"""Sharded prediction under fire: workers are killed again and again, memory is watched over many lines.

    python benchmarks/shards.py kills [--lines 4000000] [--kills 20]
    python benchmarks/shards.py memory [--lines 10000000]

`kills`: two workers share a job, and one of them is killed (kill -9) half-way through a shard so many times. The
outputs must then be those of one undisturbed worker, line by line. `memory`: one worker predicts all lines; resident
memory must not grow after the first tenth of the shards. The run is the classical `copy`: time goes into reading,
writing and the machinery around a model. Writes benchmarks/results/shards_….json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from flat_memory import ROOT, resident

GROWTH = 30e6  # bytes that memory may grow by after the first tenth of the shards
WORDS = [f"w{number}" for number in range(200)]


def lines_of(path: Path, count: int, seed: int) -> str:
    """Write lines of a number and three words; returns the hash of the file."""
    draw, hashed = random.Random(seed), hashlib.blake2b(digest_size=16)
    with path.open("wb") as file:
        for first in range(0, count, 10_000):
            rows = (f"{row} {' '.join(draw.choices(WORDS, k=3))}" for row in range(first, min(count, first + 10_000)))
            block = "".join(f"{row}\n" for row in rows).encode()
            hashed.update(block)
            file.write(block)
    return hashed.hexdigest()


def command(*arguments: object) -> list[str]:
    """`dragoman …` of this tree."""
    return [sys.executable, "-m", "dragoman", *map(str, arguments)]


def prepare(folder: Path) -> Path:
    """A run that copies."""
    (folder / "pairs.tsv").write_text("".join(f"w{n} w{n + 1}\tw{n}\n" for n in range(300)), encoding="ascii")
    subprocess.run(command("train", folder / "pairs.tsv", "--run", folder / "run", "preset=copy", "-q"), check=True)
    return folder / "run"


def outputs(folder: Path) -> tuple[str, int]:
    """Hash and number of all output lines in order."""
    hashed, lines = hashlib.blake2b(digest_size=16), 0
    for part in sorted(folder.glob("part-*.txt")):
        data = part.read_bytes()
        hashed.update(data)
        lines += data.count(b"\n")
    return hashed.hexdigest(), lines


def kills(folder: Path, lines: int, wanted: int) -> dict[str, Any]:
    """Two workers, of which one is killed while it has a shard half written."""
    run, big = prepare(folder), folder / "big.txt"
    expected = lines_of(big, lines, 2)
    out = folder / "out"
    predict = command("predict", run, big, "--shards", out, "shards.size=1")
    draw, killed, half_written = random.Random(3), 0, 0
    steady = subprocess.Popen(predict, stderr=subprocess.DEVNULL)
    said = folder / "victim.txt"
    while killed < wanted:
        with said.open("wb") as errors:
            victim = subprocess.Popen(predict, stderr=errors)
        mine = f".{victim.pid}-"
        while victim.poll() is None:
            if any(mine in path.name and path.stat().st_size for path in out.glob(".part-*.tmp")):
                time.sleep(draw.uniform(0, 0.3))
                break
            time.sleep(0.01)
        if victim.poll() is not None:  # nothing is left to kill it over
            print(f"a worker ended with {victim.returncode}: {said.read_text()[-500:]}", file=sys.stderr)
            break
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        half_written += any(mine in path.name for path in out.glob(".part-*.tmp"))
        killed += 1
    steady.wait()
    subprocess.run(predict, check=True, stderr=subprocess.DEVNULL)  # what the last victim left
    found, count = outputs(out)
    left = [path.name for path in out.glob(".*")]
    return {
        "lines": lines, "killed": killed, "half_written": half_written, "shards": len(list(out.glob("part-*.txt"))),
        "lines_out": count, "same_as_undisturbed": found == expected, "left_over": left,
        "ok": found == expected and killed == wanted and not left,
    }  # fmt: skip


def memory(folder: Path, lines: int) -> dict[str, Any]:
    """One worker; its memory as the shards go by."""
    run, big = prepare(folder), folder / "big.txt"
    expected = lines_of(big, lines, 2)
    out = folder / "out"
    started = time.perf_counter()
    size = 8 if lines >= 5_000_000 else 1
    predict = command("predict", run, big, "--shards", out, f"shards.size={size}")
    worker = subprocess.Popen(predict, stderr=subprocess.DEVNULL)
    curve: list[tuple[int, float]] = []
    while worker.poll() is None:
        time.sleep(0.5)
        done = sum(1 for _ in out.glob("part-*.json")) if out.exists() else 0
        try:
            curve.append((done, resident(worker.pid)))
        except (OSError, ValueError, IndexError):
            break
    seconds = time.perf_counter() - started
    worker.wait()
    found, count = outputs(out)
    shards = max((done for done, _ in curve), default=0)
    early = [size for done, size in curve if 1 <= done <= max(2, shards // 10)]
    late = [size for done, size in curve if done > shards // 10]
    growth = max(late, default=0) - max(early, default=0)
    return {
        "lines": lines, "seconds": round(seconds, 1), "lines_per_second": round(lines / seconds), "shards": shards,
        "lines_out": count, "same": found == expected, "first_tenth_mb": round(max(early, default=0) / 1e6, 1),
        "rest_mb": round(max(late, default=0) / 1e6, 1), "growth_mb": round(growth / 1e6, 1),
        "ok": found == expected and growth <= GROWTH,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kills", "memory"])
    parser.add_argument("--lines", type=int)
    parser.add_argument("--kills", type=int, default=20)
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["DRAGOMAN_CACHE"] = str(folder / "cache")
        if given.what == "kills":
            result = kills(folder, given.lines or 4_000_000, given.kills)
        else:
            result = memory(folder, given.lines or 10_000_000)
    result["machine"] = platform.platform()
    path = ROOT / "benchmarks" / "results" / f"shards_{given.what}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
