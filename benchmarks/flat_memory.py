"""Train a tiny model on N short pairs and watch its resident memory: it must stay flat, whatever N is.

python benchmarks/flat_memory.py [N] [--tokenizer characters|words|subwords] [--steps 300]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1.5e9  # bytes beyond what the same program needs for a thousand pairs
TOKENIZERS = {
    "characters": {"kind": "characters"},
    "words": {"kind": "words", "split": "spaces", "vocabulary": 2000},
    "subwords": {"kind": "subwords", "vocab_size": 2000},
}


def write_pairs(path: Path, count: int) -> None:
    """Short pairs, each of them different: two numbers in hexadecimal, and the same reversed."""
    with path.open("w", encoding="ascii") as file:
        for start in range(0, count, 100_000):
            sources = (
                f"{n:x} {n * 2654435761 % 16 ** (1 + n % 8):x}" for n in range(start, min(count, start + 100_000))
            )
            file.write("".join(f"{source}\t{source[::-1]}\n" for source in sources))


def write_config(path: Path, pairs: Path, tokenizer: str, steps: int) -> None:
    part = {"kind": "transformer", "layers": 1, "width": 32, "heads": 2, "feedforward": 64}
    tables = {
        "data": {"train": str(pairs)},
        "tokenizer": {"source": TOKENIZERS[tokenizer]},
        "model": {"encoder": part, "decoder": part},
        "train": {"steps": steps, "validate_every": steps, "save_every": steps, "decode": 20, "device": "cpu"},
    }
    sys.path.insert(0, str(ROOT))
    from dragoman.base.config import inline

    path.write_text("".join(f"{key} = {inline(value)}\n" for key, value in tables.items()), encoding="utf-8")


def resident(process: int) -> int:
    """Bytes of a process that are in memory."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS")), 0)


def watched(config: Path, run: Path, cache: Path) -> dict[str, tuple[int, float]]:
    """Train, and give the most memory and the seconds of each phase."""
    environment = os.environ | {"DRAGOMAN_CACHE": str(cache), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dragoman", "train", str(config), "--run", str(run)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    phase, found = ["tokenising"], dict[str, tuple[int, float]]()
    said: list[str] = []

    def listen() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if line.startswith("data:"):  # tokenised; the plan of the batches and the model come next
                phase[0] = "training"

    listener = threading.Thread(target=listen)
    listener.start()
    started = {"tokenising": time.monotonic()}
    while process.poll() is None:
        now = started.setdefault(phase[0], time.monotonic())
        most = max(found.get(phase[0], (0, 0.0))[0], resident(process.pid))
        found[phase[0]] = (most, time.monotonic() - now)
        time.sleep(0.02)
    listener.join()
    if process.returncode:
        sys.exit("".join(said))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="?", type=int, default=10_000_000)
    parser.add_argument("--tokenizer", choices=TOKENIZERS, default="characters")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    peaks = []
    with tempfile.TemporaryDirectory(prefix="dragoman-flat-") as name:
        folder = Path(name)
        for count in (1000, arguments.pairs):
            write_pairs(folder / "pairs.tsv", count)
            write_config(folder / "flat.toml", folder / "pairs.tsv", arguments.tokenizer, arguments.steps)
            peaks.append(watched(folder / "flat.toml", folder / f"run-{count}", folder / "cache"))
            trained = json.loads((folder / f"run-{count}" / "data.json").read_text())["train"]
        bytes_of_text = (folder / "pairs.tsv").stat().st_size
    small, large = peaks
    print(
        f"{arguments.pairs:,} pairs ({bytes_of_text / 1e6:,.0f} MB of text, {trained['target_tokens']:,} target "
        f"tokens, {arguments.tokenizer}); most resident memory, and beyond that of a thousand pairs:"
    )
    good = True
    for phase, (most, seconds) in large.items():
        beyond = most - small[phase][0]
        good = good and beyond < LIMIT
        print(f"{phase:<12}{most / 1e6:8,.0f} MB {beyond / 1e6:8,.0f} MB beyond {seconds:6.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
