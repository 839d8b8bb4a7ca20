"""Predict N lines with a tiny run and watch resident memory: it must stay flat, and lines must come out in order.

    python benchmarks/flat_prediction.py [N] [--beam 2] [--batch-size 512] [--engine torch]

Runs `dragoman predict` as a user does, with a terminal for its progress. Order is checked by predicting lines from all
over the file once more, each as the first of another file. Writes benchmarks/results/flat_prediction.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import pty
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from flat_memory import ROOT, resident

GROWTH = 30e6  # bytes that memory may grow by after the first tenth of the lines
CHECKED = 500  # lines predicted once more
WORDS = [f"w{number}" for number in range(200)]


def lines_of(path: Path, count: int, seed: int) -> None:
    """Lines of three words."""
    draw = random.Random(seed)
    with path.open("w", encoding="ascii") as file:
        for first in range(0, count, 10_000):
            rows = (" ".join(draw.choices(WORDS, k=3)) for _ in range(min(10_000, count - first)))
            file.write("".join(f"{row}\n" for row in rows))


def command(*arguments: object) -> list[str]:
    """`dragoman …` of this tree."""
    return [sys.executable, "-m", "dragoman", *map(str, arguments)]


def train(folder: Path, environment: dict[str, str]) -> Path:
    """A run of one layer, sixteen wide, that copies three words."""
    lines_of(folder / "train.txt", 3000, 1)
    (folder / "pairs.tsv").write_text(
        "".join(f"{line}\t{line}\n" for line in (folder / "train.txt").read_text().splitlines()), encoding="ascii"
    )
    small = [
        f"model.{side}.{setting}"
        for side in ("encoder", "decoder")
        for setting in ("layers=1", "width=16", "heads=1", "feedforward=32", "dropout=0")
    ]
    settings = ['tokenizer.source.kind="words"', "train.steps=200", "train.validate_every=200", "train.device=cpu"]
    settings += ["train.optimizer.learning_rate=1e-2", "train.optimizer.warmup=20"]
    run = folder / "run"
    subprocess.run(
        command("train", folder / "pairs.tsv", "--run", run, *settings, *small),
        env=environment, check=True, capture_output=True,
    )  # fmt: skip
    return run


def predict(run: Path, lines: Path, output: Path, options: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Predict and watch: samples of (seconds, bytes written, bytes resident), and what the terminal showed."""
    ours, theirs = pty.openpty()
    shown: list[str] = []

    def look() -> None:
        while True:
            try:
                seen = os.read(ours, 4096)
            except OSError:  # the other side is closed
                return
            if not seen:
                return
            shown.append(seen.decode("utf-8", "replace"))
            del shown[:-200]

    with output.open("wb") as file:
        begin = time.monotonic()
        process = subprocess.Popen(
            command("predict", run, lines, *options), stdout=file, stderr=theirs, env=environment | {"TERM": "xterm"}
        )
        os.close(theirs)
        looking = threading.Thread(target=look)
        looking.start()
        samples = []
        while process.poll() is None:
            samples.append((time.monotonic() - begin, output.stat().st_size, resident(process.pid)))
            time.sleep(0.2)
        looking.join(5)
        took = time.monotonic() - begin
    text = "".join(shown)
    if process.returncode:
        sys.exit(text)
    counts = re.findall(r"([\d,]+) of ([\d,]+) lines", text)
    return {"samples": samples, "seconds": took, "progress": " of ".join(counts[-1]) if counts else ""}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--beam", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--engine", choices=("torch", "ctranslate2"), default="torch")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "flat_prediction.json")
    arguments = parser.parse_args()
    options = ["--beam", arguments.beam, "--batch-size", arguments.batch_size]
    options += [f"engine={arguments.engine}", "search.max_length=3"]
    told = [str(option) for option in (*options, "--device", "cpu")]
    with tempfile.TemporaryDirectory(prefix="dragoman-flat-") as name:
        folder = Path(name)
        environment = os.environ | {"DRAGOMAN_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
        environment.setdefault("OMP_NUM_THREADS", "1")
        run = train(folder, environment)
        lines_of(folder / "lines.txt", arguments.lines, 2)
        found = predict(run, folder / "lines.txt", folder / "out.txt", told, environment)
        written = (folder / "out.txt").read_text(encoding="utf-8").split("\n")[:-1]
        asked = (folder / "lines.txt").read_text(encoding="ascii").splitlines()
        places = random.Random(3).sample(range(arguments.lines), min(CHECKED, arguments.lines))
        (folder / "some.txt").write_text("".join(asked[place] + "\n" for place in places), encoding="ascii")
        again = subprocess.run(
            command("predict", run, folder / "some.txt", *told), env=environment, check=True, capture_output=True
        ).stdout.decode()  # fmt: skip
    in_order = len(written) == arguments.lines and again.split("\n")[:-1] == [written[place] for place in places]
    different = len({written[place] for place in places})
    whole = found["samples"][-1][1] or 1
    at = {
        f"{share}%": max(memory for _, size, memory in found["samples"] if size <= max(whole * share / 100, 1))
        for share in (10, 25, 50, 75, 100)
    }
    facts = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "settings": {"lines": arguments.lines, "options": told},
        "seconds": found["seconds"],
        "lines_per_second": arguments.lines / found["seconds"],
        "most_resident_until": at,
        "progress_last_shown": found["progress"],
        "lines_checked": len(places),
        "different_outputs_among_them": different,
        "in_order": in_order,
    }
    arguments.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(facts, indent=2))
    flat = at["100%"] - at["10%"] < GROWTH
    return 0 if flat and in_order and found["progress"] else 1


if __name__ == "__main__":
    sys.exit(main())
