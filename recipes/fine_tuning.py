"""Fine-tune an imported Marian with random weights on Multi30k, beside the same architecture trained natively.

    python recipes/fine_tuning.py --data PATH_TO_DATA [--pairs 29000] [--seeds 1 2 3] [PLACE=VALUE ...]

transformers makes the Marian with its own random weights and the sub-words of the native run; `dragoman import` reads
it. The native run, the fine-tuned import and an import with LoRA adapters then train for as many steps with the same
settings. The first two should reach the same BLEU (± 0.5); adapters beside random frozen weights reach less. Further
arguments are settings of all runs. Writes recipes/results/fine-tuning.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODEL = [
    "model.tie=all", "model.encoder.kind=transformer", "model.decoder.kind=transformer",
    *(
        f"model.{side}.{setting}"
        for side in ("encoder", "decoder")
        for setting in (
            "layers=3", "width=256", "heads=4", "feedforward=1024", "dropout=0.2", "norm=post", "activation=silu",
            "positions.kind=sinusoidal", "positions.layout=halves",
        )
    ),
]  # fmt: skip
TRAINING = [
    "train.steps=5000", "train.batch_tokens=4096", "train.validate_every=500", "train.save_every=5000",
    "train.metric=bleu", "train.patience=0", "train.optimizer.learning_rate=1e-3", "train.optimizer.warmup=800",
    "train.optimizer.schedule=cosine", "tokenizer.source.vocab_size=5000",
]  # fmt: skip


def dragoman(*arguments: object) -> str:
    """The standard output of a command."""
    command = [sys.executable, "-m", "dragoman", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def write_pairs(data: Path, part: str, path: Path, count: int | None = None) -> None:
    """The pairs of a part as a tab-separated file."""
    sides = []
    for language in ("en", "de"):
        with gzip.open(data / f"multi30k/{part}.{language}.gz", "rt", encoding="utf-8", newline="\n") as file:
            sides.append([" ".join(line.split()) for line in file.read().splitlines()[:count]])  # one has a tab
    path.write_text("".join(f"{one}\t{other}\n" for one, other in zip(*sides, strict=True)), encoding="utf-8")


def random_marian(native: Path, folder: Path, seed: int) -> None:
    """A Marian with the settings and sub-words of a run, but weights that transformers draws."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    dragoman("export", native, "--to", "huggingface", "--output", folder)
    torch.manual_seed(seed)
    MarianMTModel(MarianConfig.from_pretrained(folder)).save_pretrained(folder)


def scores_of(run: Path, test: Path) -> dict[str, float]:
    """BLEU of a run on test pairs, by greedy search, and the best validation loss per token."""
    found = json.loads(dragoman("evaluate", run, test, "--json", "--beam", 1))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {"bleu": float(found["bleu"]), "loss": min(row["valid"]["loss"] for row in rows if "valid" in row)}


def train_three(work: Path, seed: int, settings: list[str]) -> dict[str, dict[str, float]]:
    """The scores of the native run, of the fine-tuned import and of the import with adapters."""
    common = [*MODEL, *settings, f"train.seed={seed}", f"data.valid={work / 'valid.tsv'}"]
    runs = {name: work / f"{name}-{seed}" for name in ("native", "imported", "lora")}
    dragoman("train", work / "train.tsv", "--run", runs["native"], "-q", *common)
    random_marian(runs["native"], work / f"marian-{seed}", seed)
    dragoman("import", work / f"marian-{seed}", "--run", work / f"random-{seed}")
    start = [f"train.start_from={work / f'random-{seed}'}"]
    without = [one for one in common if not one.startswith(("model.", "tokenizer."))]
    dragoman("train", work / "train.tsv", "--run", runs["imported"], "-q", *without, *start)
    dragoman("train", work / "train.tsv", "--run", runs["lora"], "-q", *without, *start, "train.lora.rank=16")
    return {name: scores_of(run, work / "test.tsv") for name, run in runs.items()}


def main() -> None:
    """Train with every seed and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("fine-tuning"))
    parser.add_argument("--pairs", type=int, help="the first so many training pairs; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--output", type=Path, default=HERE / "results" / "fine-tuning.json")
    parser.add_argument("settings", nargs="*", metavar="PLACE=VALUE")
    given = parser.parse_args()
    given.work.mkdir(parents=True)
    started = time.perf_counter()
    for part, name, count in (
        ("train", "train", given.pairs),
        ("val", "valid", None),
        ("test_2016_flickr", "test", None),
    ):
        write_pairs(given.data, part, given.work / f"{name}.tsv", count)
    scores = {seed: train_three(given.work, seed, [*TRAINING, *given.settings]) for seed in given.seeds}
    result: dict[str, Any] = {
        "about": "Multi30k English → German: native training, fine-tuning of a random Marian, LoRA beside",
        "pairs": given.pairs or "all",
        "settings": given.settings,
        "scores": {str(seed): row for seed, row in scores.items()},
        "mean bleu": {
            name: statistics.fmean(row[name]["bleu"] for row in scores.values())
            for name in ("native", "imported", "lora")
        },
        "seconds": round(time.perf_counter() - started),
        "machine": platform.machine(),
    }
    given.output.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(result["mean bleu"]))


if __name__ == "__main__":
    main()
