"""Back-translation with few pairs: Multi30k German → English with a tenth of the pairs, and English text alone.

    python recipes/back_translation.py --data PATH_TO_DATA [--seeds 1 2 3] [PLACE=VALUE ...]

A tenth of the training pairs is kept as pairs; of the others only the English side is used, as monolingual text. A run
from English to German, trained on the tenth, translates that text back. Then two systems are trained for as many steps
with each seed: on the tenth alone, and on the tenth (each pair `--weight` times) with the synthetic pairs. Further
arguments are settings of all runs. Writes recipes/results/back-translation.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SMALL = [
    f"model.{side}.{setting}"
    for side in ("encoder", "decoder")
    for setting in ("layers=1", "width=128", "heads=4", "feedforward=256", "dropout=0.2")
]
TRAINING = [
    "train.steps=600", "train.batch_tokens=2048", "train.validate_every=200", "train.save_every=600",
    "train.metric=bleu", "train.optimizer.learning_rate=3e-3", "train.optimizer.warmup=100",
    "tokenizer.source.vocab_size=3000",
]  # fmt: skip


def dragoman(*arguments: object) -> str:
    """The standard output of a command."""
    command = [sys.executable, "-m", "dragoman", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def lines_of(path: Path) -> list[str]:
    """The lines of a compressed file."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return file.read().splitlines()


def write_data(data: Path, work: Path) -> int:
    """The tenth of the pairs in both directions, English text of the others, validation pairs; returns the tenth."""
    english, german = (lines_of(data / f"multi30k/train.{side}.gz") for side in ("en", "de"))
    tenth = len(english) // 10
    for name, left, right in (("de-en", german, english), ("en-de", english, german)):
        rows = zip(left[:tenth], right[:tenth], strict=True)
        (work / f"{name}.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in rows), encoding="utf-8")
    (work / "mono.en").write_text("".join(f"{line}\n" for line in english[tenth:]), encoding="utf-8")
    for part in ("val", "test_2016_flickr"):
        en, de = (lines_of(data / f"multi30k/{part}.{side}.gz") for side in ("en", "de"))
        for name, left, right in (("de-en", de, en), ("en-de", en, de)):
            rows = zip(left, right, strict=True)
            text = "".join(f"{one}\t{other}\n" for one, other in rows)
            (work / f"{part}.{name}.tsv").write_text(text, encoding="utf-8")
    return tenth


def train(work: Path, name: str, files: str, seed: int, settings: list[str]) -> Path:
    """A run on these files, unless it is there already."""
    run, direction = work / f"{name}-{seed}", "en-de" if name == "reverse" else "de-en"
    config = work / f"{name}.toml"
    config.write_text(f'[data]\ntrain = {files}\nvalid = "{work}/val.{direction}.tsv"\n', encoding="utf-8")
    if not (run / "weights.safetensors").exists():
        dragoman("train", config, "--run", run, f"train.seed={seed}", "-q", *SMALL, *TRAINING, *settings)
    return run


def bleu(run: Path, test: Path) -> float:
    """BLEU on the test set, beam 5."""
    scores: dict[str, Any] = json.loads(dragoman("evaluate", run, test, "--json", "--beam", 5, "--metric", "bleu"))
    return float(scores["bleu"])


def main() -> None:
    """Train, translate back, train again, and write the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("work/back-translation"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--weight", type=float, default=4.0)
    parser.add_argument("--method", default="beam")
    given, settings = parser.parse_known_args()
    work = given.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    started = time.time()
    tenth = write_data(given.data, work)
    reverse = train(work, "reverse", f'"{work}/en-de.tsv"', 1, settings)
    synthetic = work / "synthetic.tsv"
    if not synthetic.exists():
        dragoman("back-translate", reverse, work / "mono.en", "-o", synthetic, "--method", given.method, "--beam", 4)
    real, mixed = f'"{work}/de-en.tsv"', f'[{{ file = "{work}/de-en.tsv", weight = {given.weight} }}, "{synthetic}"]'
    found: dict[str, Any] = {
        "pairs": tenth,
        "synthetic": len(synthetic.read_text(encoding="utf-8").splitlines()),
        "reverse_bleu": bleu(reverse, work / "test_2016_flickr.en-de.tsv"),
        "settings": [*SMALL, *TRAINING, *settings, f"weight={given.weight}", f"method={given.method}"],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    for name, files in (("without", real), ("with", mixed)):
        runs = [train(work, name, files, seed, settings) for seed in given.seeds]
        scores = [round(bleu(run, work / "test_2016_flickr.de-en.tsv"), 2) for run in runs]
        found[name] = {"bleu": scores, "mean": round(statistics.mean(scores), 2)}
        print(name, scores, flush=True)
    found["seconds"] = round(time.time() - started)
    (HERE / "results" / "back-translation.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
