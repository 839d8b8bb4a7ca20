"""Align N sentence pairs with `dragoman align --model hmm`: wall time, processor time and peak memory.

    python benchmarks/align_memory.py --data PATH_TO_DATA [--pairs 1000000] [--file PAIRS.tsv]

The pairs are one to three English-German pairs of Tatoeba and Multi30k drawn at random, one after the other. Words that
occur once or twice there get one of ten endings, so that the vocabulary grows with the text as it does in real text.
Writes benchmarks/results/align_memory.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS, PEAK = 300, 2e9  # what the alignment may take


def read_pairs(data: Path) -> list[tuple[list[str], list[str]]]:
    """All training pairs, as words."""
    pairs = []
    with gzip.open(data / "tatoeba_pairs/train.eng-deu.tsv.gz", "rt", encoding="utf-8") as file:
        pairs += [line.rstrip("\n").split("\t")[:2] for line in file]
    sides = []
    for side in ("en", "de"):
        with gzip.open(data / f"multi30k/train.{side}.gz", "rt", encoding="utf-8") as file:
            sides.append(file.read().splitlines())
    pairs += zip(*sides, strict=True)
    return [(source.split(), target.split()) for source, target in pairs]


def write_pairs(data: Path, path: Path, count: int) -> None:
    """Draw and write `count` pairs."""
    pairs = read_pairs(data)
    counts = Counter(word for pair in pairs for side in pair for word in side)
    draw = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            some = [draw.choice(pairs) for _ in range(draw.randint(1, 3))]
            ending = f"~{draw.randrange(10)}"
            sides = (
                " ".join(word if counts[word] > 2 else word + ending for pair in some for word in pair[side])
                for side in (0, 1)
            )
            file.write("\t".join(sides) + "\n")


def main() -> None:
    """Write the pairs, align them, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds the data sets")
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--file", type=Path, help="write the pairs here, or use the ones that are there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder) / "pairs.tsv"
        if not path.exists():
            with multiprocessing.Pool(1) as worker:
                worker.apply(write_pairs, (options.data, path, options.pairs))
        words, different = 0, set[str]()
        with path.open(encoding="utf-8") as file:  # a child begins with the peak of its parent, so this stays small
            for line in file:
                words += len(line.split())
                different.update(line.split())
        links = Path(folder) / "links.txt"
        command = [sys.executable, "-m", "dragoman", "align", "--model", "hmm", str(path)]
        started = time.perf_counter()
        with links.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, cwd=ROOT)
            _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        lines = links.read_bytes().count(b"\n")
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    result = {
        "pairs": lines, "words": words, "different_words": len(different), "seconds": round(seconds, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1), "peak_mb": round(peak / 1e6),
        "cores": os.cpu_count(), "load": os.getloadavg()[0], "machine": platform.platform(),
        "ok": status == 0 and lines == options.pairs and seconds < SECONDS and peak < PEAK,
    }  # fmt: skip
    if lines == 1_000_000:
        (ROOT / "benchmarks" / "results" / "align_memory.json").write_text(
            json.dumps(result, indent=1) + "\n", encoding="utf-8"
        )
    print(json.dumps(result, indent=1))
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
