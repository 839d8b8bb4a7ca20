"""More from one's own pairs: data diversification, and both directions first, on Tatoeba English → French.

    python recipes/own_pairs.py --data PATH_TO_DATA --pairs 10000 [--copies 3] [--seeds 1 2 3] [PLACE=VALUE ...]

Four systems are trained with every seed for as many steps on the first N pairs, with one vocabulary:

plain        the pairs
diversified  the pairs, their sources as K forward runs translate them, and their targets as K backward runs translate
             them back (Nguyen et al. 2020)
both         a third of the steps on the pairs in both directions, the rest on the pairs (Ding et al. 2021)
all          both, on diversified pairs

Further arguments are settings of all runs. Writes recipes/results/own-pairs-N.json. A run takes 12,000 steps of 4,096
tokens; 2 K + 6 runs with one seed (K of them are one seed of plain).
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Rows = list[tuple[str, str]]
TRAINING = [
    "train.batch_tokens=4096", "train.metric=bleu", "train.patience=0", "train.optimizer.learning_rate=2e-3",
    "train.optimizer.schedule=cosine", "train.optimizer.warmup=800", "train.decode=1000",
]  # fmt: skip


def dragoman(*arguments: object) -> str:
    """The standard output of a command."""
    command = [sys.executable, "-m", "dragoman", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def read(path: Path, count: int | None = None) -> Rows:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="\n") as file:
        rows = [line.rstrip("\n").split("\t")[:2] for line in file][:count]
    return [(source, target) for source, target in rows]


def write(path: Path, rows: Rows) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    return path


def swapped(rows: Rows) -> Rows:
    return [(target, source) for source, target in rows]


class Study:
    """The runs of one number of pairs, each trained once: what is in the work folder is not trained again."""

    def __init__(self, given: argparse.Namespace, settings: list[str]) -> None:
        self.work, self.steps, self.settings = given.work.absolute(), given.steps, settings
        self.vocabulary: list[str] = [f"tokenizer.source.vocab_size={given.vocabulary}"]
        self.data = given.data / "tatoeba_pairs"
        self.pairs = read(self.data / "train.eng-fra.tsv.gz", given.pairs)
        self.work.mkdir(parents=True, exist_ok=True)
        for name, rows in (("valid", read(self.data / "dev.eng-fra.tsv.gz", 1000)),):
            write(self.work / f"{name}.tsv", rows)
            write(self.work / f"{name}-back.tsv", swapped(rows))
        self.test = write(self.work / "test.tsv", read(self.data / "test.eng-fra.tsv.gz"))

    def train(self, name: str, rows: Rows, seed: int, *more: str, valid: str = "valid", steps: int = 0) -> Path:
        run, steps = self.work / f"{name}-{seed}", steps or self.steps
        if not (run / "weights.safetensors").exists():
            pairs = write(self.work / f"{name}-{seed}.tsv", rows)
            config = self.work / f"{name}-{seed}.toml"
            config.write_text(
                f'preset = "transformer-small"\n[data]\ntrain = "{pairs}"\nvalid = "{self.work}/{valid}.tsv"\n'
                'faults = "skip"\n',  # a model may write what no file of pairs can hold
                encoding="utf-8",
            )
            every = [f"train.steps={steps}", f"train.validate_every={max(1, steps // 20)}", f"train.save_every={steps}"]
            own = [*TRAINING, *every, *self.vocabulary, f"train.seed={seed}", *self.settings, *more]
            dragoman("train", config, "--run", run, "-q", *own)
        return run

    def translated(self, run: Path, rows: Rows) -> Rows:
        """(translation, source) of every source that has a translation."""
        made, sources = self.work / f"{run.name}.made.tsv", self.work / f"{run.name}.sources.txt"
        if not made.exists():
            sources.write_text("".join(f"{source}\n" for source, _ in rows), encoding="utf-8")
            dragoman("back-translate", run, sources, "-o", made, "--mark", "", "--beam", 5, "--batch-size", 256)
        return read(made)

    def copies(self, number: int) -> Rows:
        """What a forward and a backward run of a seed add."""
        forward = self.train("plain", self.pairs, number)
        backward = self.train("backward", swapped(self.pairs), number, valid="valid-back")
        ahead = swapped(self.translated(forward, self.pairs))
        return ahead + self.translated(backward, swapped(self.pairs))

    def both(self, name: str, rows: Rows, seed: int) -> Path:
        """A third of the steps in both directions, the rest in one."""
        first = self.train(f"{name}-first", rows + swapped(rows), seed, steps=self.steps // 3)
        left = self.steps - self.steps // 3
        return self.train(name, rows, seed, f"train.start_from={first}", "train.optimizer.warmup=100", steps=left)


def bleu(run: Path, test: Path) -> float:
    scores: dict[str, Any] = json.loads(dragoman("evaluate", run, test, "--json", "--beam", 5, "--metric", "bleu"))
    return round(float(scores["bleu"]), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("work/own-pairs"))
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--copies", type=int, default=3, help="forward and backward runs of diversification")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--vocabulary", type=int, default=4000)
    parser.add_argument("--parallel", type=int, default=4, help="runs trained at the same time")
    given, settings = parser.parse_known_args()
    study, started = Study(given, settings), time.time()
    first = study.train("plain", study.pairs, given.seeds[0])  # whose vocabulary all others have
    study.vocabulary = ["tokenizer.source.kind=run", f"tokenizer.source.run={first}", "tokenizer.source.side=source"]
    with ThreadPoolExecutor(given.parallel) as pool:
        made = list(pool.map(study.copies, range(1, given.copies + 1)))
        diverse = list(dict.fromkeys([*study.pairs, *(row for rows in made for row in rows)]))
        systems = {
            "plain": lambda seed: study.train("plain", study.pairs, seed),
            "diversified": lambda seed: study.train("diversified", diverse, seed),
            "both": lambda seed: study.both("both", study.pairs, seed),
            "all": lambda seed: study.both("all", diverse, seed),
        }
        jobs = {name: [pool.submit(system, seed) for seed in given.seeds] for name, system in systems.items()}
        runs = {name: [job.result() for job in waiting] for name, waiting in jobs.items()}
        scores = {name: list(pool.map(bleu, found, [study.test] * len(found))) for name, found in runs.items()}
    result: dict[str, Any] = {"pairs": len(study.pairs), "with_copies": len(diverse), "settings": settings}
    for name, found in scores.items():
        result[name] = {"bleu": found, "mean": round(statistics.mean(found), 2)}
    result["seconds"] = round(time.time() - started)
    (HERE / "results" / f"own-pairs-{given.pairs}.json").write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
