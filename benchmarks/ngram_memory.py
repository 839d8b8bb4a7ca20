"""Fit a 5-gram model to N made-up tokens in a store: processor time and peak memory, beside the size of the model.

    python benchmarks/ngram_memory.py [N ...]

Tokens follow a Zipf distribution, and four of ten are decided by the token before. Writes
benchmarks/results/ngram_memory.json.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY, LINE = 100_000, 25
SIZES = (2_000_000, 5_000_000, 10_000_000, 20_000_000)
BEYOND = 450e6  # bytes that the peak may have above the interpreter and the model, whatever the number of tokens


def write_store(folder: Path, tokens: int) -> None:
    """A column of lines of 25 tokens."""
    import numpy as np

    draw, size, last = np.random.default_rng(1), VOCABULARY - 4, 4
    with (folder / "target.tokens").open("wb") as file:
        for first in range(0, tokens, 1_000_000):
            count = min(1_000_000, tokens - first)
            block = (draw.zipf(1.2, count) % size + 4).astype(np.int64)
            decided = draw.random(count) < 0.4
            before = np.concatenate([[last], block[:-1]])
            block[decided] = before[decided] * 7919 % size + 4
            last = int(block[-1])
            file.write(block.astype(np.uint32).tobytes())
    (folder / "target.offsets").write_bytes(np.arange(0, tokens + 1, LINE).astype(np.int64).tobytes())


def fit(folder: Path) -> None:
    """Fit one model and print what it took."""
    sys.path.insert(0, str(ROOT))
    from dragoman.classical.ngram import NGramConfig, NGramModel
    from dragoman.data.store import Column

    column = Column(folder, "target", "uint32")
    before, started = peak(), time.process_time()
    model = NGramModel(NGramConfig(5), VOCABULARY).fit_rows(column)
    seconds, highest = time.process_time() - started, peak()
    size = sum(tensor.nbytes for tensor in model.tensors.values())
    print(
        json.dumps(
            {
                "tokens": column.offset(len(column)), "ngrams": sum(len(level.keys) for level in model.levels),
                "cpu_seconds": round(seconds, 1), "peak_mb": round(highest / 1e6), "model_mb": round(size / 1e6),
                "interpreter_mb": round(before / 1e6), "beyond_mb": round((highest - before - size) / 1e6),
            }
        )
    )  # fmt: skip


def peak() -> int:
    """The highest resident memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Fit models of growing texts, each in a process of its own."""
    if sys.argv[1:2] == ["--fit"]:
        fit(Path(sys.argv[2]))
        return
    rows = []
    for tokens in map(int, sys.argv[1:] or SIZES):
        with tempfile.TemporaryDirectory() as folder:
            write = [sys.executable, "-c", f"import ngram_memory as m; m.write_store(m.Path({folder!r}), {tokens})"]
            subprocess.run(write, check=True, cwd=Path(__file__).parent)
            command = [sys.executable, __file__, "--fit", folder]
            done = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )
        rows.append(json.loads(done.stdout))
        print(json.dumps(rows[-1]), flush=True)
    ok = all(row["beyond_mb"] * 1e6 <= BEYOND for row in rows)
    result = {"fits": rows, "machine": platform.platform(), "ok": ok}
    if len(sys.argv) == 1:
        path = ROOT / "benchmarks" / "results" / "ngram_memory.json"
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
