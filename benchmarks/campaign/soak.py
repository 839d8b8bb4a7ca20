"""Train, predict, evaluate and complete in one process, again and again: memory and open files must stay flat.

python benchmarks/campaign/soak.py [MINUTES]        half an hour by default; the first cycles warm up
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

WARM = 5  # cycles
MAX_GROWTH = 40 << 20  # bytes after warming up: what an allocator keeps here and there


def resident() -> int:
    """Bytes of this process in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def tables(folder: Path) -> dict[str, dict[str, Any]]:
    """Small runs of three tasks."""
    small = {"kind": "transformer", "layers": 1, "width": 16, "heads": 2, "feedforward": 32}
    (folder / "pairs.tsv").write_text("".join(f"{'abcdefgh'[n % 8 :]}{n}\t{n}x\n" for n in range(80)))
    (folder / "labels.tsv").write_text("".join(f"some text {n}\t{'ab'[n % 2]}\n" for n in range(80)))
    (folder / "text.txt").write_text("".join(f"line {n} of a text\n" for n in range(80)))
    train = {"steps": 6, "validate_every": 3, "save_every": 3, "device": "cpu"}
    train |= {"optimizer": {"learning_rate": 1e-2, "warmup": 1}}
    characters = {"source": {"kind": "characters"}}
    return {
        "translate": {
            "data": {"train": str(folder / "pairs.tsv")}, "tokenizer": characters,
            "model": {"encoder": small, "decoder": small}, "train": train,
        },
        "classify": {
            "task": "classify", "data": {"train": str(folder / "labels.tsv")}, "tokenizer": characters,
            "model": {"encoder": small}, "train": train,
        },
        "complete": {
            "task": "language-model", "data": {"train": str(folder / "text.txt")}, "tokenizer": characters,
            "model": {"stack": small}, "train": train,
        },
    }  # fmt: skip


def cycle(folder: Path) -> None:
    """What a user does in a day: train three runs, predict by both engines and by every method, evaluate, complete."""
    import dragoman
    from dragoman.base.errors import DragomanError

    shutil.rmtree(folder / "runs", ignore_errors=True)
    for name, table in tables(folder).items():
        dragoman.train(table, folder / "runs" / name, quiet=True)
    for engine in ("torch", "auto"):
        run = dragoman.load(folder / "runs" / "translate", engine=engine)
        run.predict(["abc", "12", "", "ü"], beam=3, n_best=2)
        run.predict(["abc"], require="x", forbid="1")
        run.evaluate([("abc1", "1x"), ("b", "2x")])
        with contextlib.suppress(DragomanError):
            run.predict(["abc"], prefix="☃")
    dragoman.load([folder / "runs" / "translate"] * 2).predict(["abc"])
    dragoman.load(folder / "runs" / "classify").predict(["some text"])
    dragoman.load(folder / "runs" / "complete").complete(["li"])


def soak(seconds: float, cycles: int = 1 << 30) -> tuple[int, list[int], list[int]]:
    """Repeat cycles; their number, and memory and open files after each."""
    memory, files = [], []
    with tempfile.TemporaryDirectory(prefix="dragoman-soak-") as name:
        os.environ["DRAGOMAN_CACHE"] = str(Path(name) / "cache")
        end = time.monotonic() + seconds
        while (time.monotonic() < end or len(memory) < 2 * WARM) and len(memory) < cycles:
            cycle(Path(name))
            gc.collect()
            memory.append(resident())
            files.append(open_files())
    return len(memory), memory, files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", nargs="?", type=float, default=30.0)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    started = time.monotonic()
    count, memory, files = soak(60 * arguments.minutes)
    grown, opened = max(memory[-3:]) - max(memory[:WARM]), max(files[WARM:]) - files[WARM]
    print(
        f"soak: {count} cycles, {memory[WARM] / 1e6:.0f} MB after {WARM}, {memory[-1] / 1e6:.0f} MB at the end "
        f"({grown / 1e6:+.1f} MB), open files {files[WARM]} to {files[-1]}, {time.monotonic() - started:.0f} s"
    )
    return 0 if grown < MAX_GROWTH and opened <= 0 else 1


if __name__ == "__main__":
    sys.exit(main())
