"""How fast a large corpus is read and tokenised, in how much memory, and what a kill costs.

    python benchmarks/preparation.py rates [--pairs 1000000]
    python benchmarks/preparation.py memory [--pairs 250000 1000000 4000000]
    python benchmarks/preparation.py kills [--pairs 1000000] [--kills 3]

Pairs are made up: 10 words a side from a Zipf distribution over 100,000 words, BPE of 8,000 pieces. `rates`: processor
time of each job on one core, which other work on the machine hardly changes, and the time of the whole on all cores.
`memory`: the largest resident memory of any process, against the number of pairs. `kills`: the first process is killed
(kill -9) so often; the store must then be that of an undisturbed one. Writes
benchmarks/results/preparation_….json.
"""

from __future__ import annotations

import argparse
import gc
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
from itertools import accumulate
from pathlib import Path
from typing import Any

from flat_memory import ROOT

from dragoman.data.config import DataConfig
from dragoman.data.formats.pairs import PAIR_FORMAT
from dragoman.data.shards import cut_shards
from dragoman.data.workers import WORK, Jobs

LINES = 10_000  # written at a time
TEN_MILLION = 10_000_000
SCRIPT = """
import os, resource, sys, time
from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.corpus import prepare_corpus
started = time.perf_counter()
corpus = prepare_corpus(DataConfig(train=sys.argv[1], cache=sys.argv[2]), TokenizersConfig())
own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
processor = sum(use.ru_utime + use.ru_stime for use in (own, others))
print(corpus.train.folder.parent, time.perf_counter() - started, processor, own.ru_maxrss, others.ru_maxrss)
"""


def write_pairs(path: Path, count: int) -> Path:
    draw = random.Random(1)
    syllables = [first + vowel + last for first in "bdfghklmnprstvz" for vowel in "aeiou" for last in ("", *"nrst")]
    words = ["".join(draw.choices(syllables, k=draw.choice([1, 1, 2, 2, 3, 3, 4]))) for _ in range(100_000)]
    weights = list(accumulate(1 / (rank + 3) for rank in range(len(words))))
    with path.open("w", encoding="ascii") as file:
        for first in range(0, count, LINES):
            rows = min(LINES, count - first)
            drawn = iter(draw.choices(words, cum_weights=weights, k=20 * rows))
            for _ in range(rows):
                row = [next(drawn) for _ in range(20)]
                file.write(f"{' '.join(row[:10])}\t{' '.join(row[10:])}\n")
    return path


def start(path: Path, cache: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, path, cache], stdout=subprocess.PIPE, text=True, env=environment
    )


def prepared(path: Path, cache: Path) -> tuple[Path, float, float, list[int]]:
    """Folder of the corpus, seconds, seconds of processor time, and the memory of this and of the largest worker."""
    folder, *numbers = start(path, cache).communicate()[0].split()
    return Path(folder), float(numbers[0]), float(numbers[1]), [int(number) << 10 for number in numbers[2:]]


def content(folder: Path) -> str:
    """A hash of all files of a corpus."""
    hashed = hashlib.blake2b(digest_size=16)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        hashed.update(f"{path.relative_to(folder)}\n".encode())
        hashed.update(path.read_bytes())
    return hashed.hexdigest()


def rates(folder: Path, pairs: int) -> dict[str, Any]:
    path = write_pairs(folder / "pairs.tsv", pairs)
    corpus, seconds, processor, _ = prepared(path, folder / "cache")
    config = DataConfig(train=str(path))
    started = time.process_time()
    shards = cut_shards(config, PAIR_FORMAT)
    spent = {"cut": time.process_time() - started}
    gc.disable()  # as the workers do
    (folder / "jobs" / WORK).mkdir(parents=True)
    (folder / "jobs" / "tokenizer").symlink_to(corpus / "tokenizer")
    jobs = Jobs(config, PAIR_FORMAT, folder / "jobs", shards)
    part, numbers = (0, 0, []), list(range(0, 2 * pairs // len(shards), max(1, 2 * pairs // 500_000)))
    for kind, arguments in (("scan", ()), ("sample", (0, part, ("source", "target"), numbers)), ("write", (0, part))):
        started = time.process_time()
        for number in range(len(shards)):
            getattr(jobs, kind)(number, *arguments)
        spent[kind] = time.process_time() - started
    for kind, used in spent.items():
        print(f"{kind:8} {1e6 * used / pairs:6.2f} µs of one core a pair")
    each = sum(spent.values()) / pairs
    vocabulary = processor - sum(spent.values())
    cores = len(os.sched_getaffinity(0))
    print(f"together {1e6 * each:6.2f} µs: {1 / each:,.0f} pairs a second on one core")
    print(f"as a whole {seconds:.1f} s on {cores} cores, {processor:.1f} s of processor time")
    whole = TEN_MILLION * each / 2 + vocabulary
    print(f"computed: 10 million pairs on two quiet cores {whole:.0f} s ({vocabulary:.0f} s of them whatever the size)")
    return {"pairs": pairs, "processor": spent, "seconds": seconds, "all_processor": processor, "ten_million": whole}


def memory(folder: Path, sizes: list[int]) -> dict[str, Any]:
    rows = []
    for pairs in sizes:
        path = write_pairs(folder / f"{pairs}.tsv", pairs)
        _, seconds, processor, (own, worker) = prepared(path, folder / f"cache-{pairs}")
        path.unlink()
        print(f"{pairs:10,} pairs: first process {own / 1e6:.0f} MB, a worker {worker / 1e6:.0f} MB")
        rows.append({"pairs": pairs, "own": own, "worker": worker, "seconds": seconds, "processor": processor})
    return {"memory": rows}


def kills(folder: Path, pairs: int, count: int) -> dict[str, Any]:
    path = write_pairs(folder / "pairs.tsv", pairs)
    expected, seconds, processor, _ = prepared(path, folder / "undisturbed")
    moments = []
    for number in range(count):
        process, begun = start(path, folder / "cache"), time.perf_counter()
        while process.poll() is None and time.perf_counter() - begun < seconds * (number + 1) / (count + 1):
            time.sleep(0.05)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        moments.append(len(list((folder / "cache").glob(f"*/{WORK}/*.json"))))
    found, again, used, _ = prepared(path, folder / "cache")
    same = content(found) == content(expected)
    print(f"{count} kills with {moments} finished jobs; the same store: {same}")
    print(f"processor time of the last process {used:.1f} s, of an undisturbed one {processor:.1f} s")
    left = [entry.name for entry in (folder / "cache").iterdir() if entry != found]
    print(f"left over in the cache: {left}")
    return {"kills": count, "finished": moments, "same": same, "last": used, "undisturbed": processor, "again": again}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rates", "memory", "kills"])
    parser.add_argument("--pairs", type=int, nargs="+")
    parser.add_argument("--kills", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "memory":
            result = memory(Path(folder), options.pairs or [250_000, 1_000_000, 4_000_000])
        elif options.what == "kills":
            result = kills(Path(folder), (options.pairs or [1_000_000])[0], options.kills)
        else:
            result = rates(Path(folder), (options.pairs or [1_000_000])[0])
    target = ROOT / "benchmarks" / "results" / f"preparation_{options.what}_{platform.machine()}.json"
    target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
