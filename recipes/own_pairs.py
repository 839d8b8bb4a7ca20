"""More from one's own pairs: data diversification, and both directions first, on Tatoeba English → French.

    python recipes/own_pairs.py --data PATH_TO_DATA --pairs 10000 [--copies 3] [--seeds 1 2 3] [PLACE=VALUE ...]
    python recipes/own_pairs.py --data PATH_TO_DATA --pairs 4000 --automatic --systems plain diversified

Four systems are trained with every seed for as many steps on N pairs, with one vocabulary. The file is sorted by
length; the pairs are spread evenly over it.

plain        the pairs
diversified  the pairs, their sources as K forward runs translate them, and their targets as K backward runs translate
             them back (Nguyen et al. 2020)
both         a third of the steps on the pairs in both directions, the rest on the pairs (Ding et al. 2021)
all          both, on diversified pairs

Further arguments are settings of all runs. Writes recipes/results/own-pairs-N.json. A run takes 12,000 steps of 4,096
tokens; 2 K + 6 runs with one seed (K of them are one seed of plain). With --automatic model, batches and regularisation
are those that `dragoman train` chooses for the pairs, and it may stop early; a GPU gets another model than a CPU. The
same command goes on where it was stopped; --score-only scores the best weights so far.
"""

from __future__ import annotations

import argparse
import gzip
import json
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WEIGHTS = "weights.safetensors"
SYSTEMS = ("plain", "diversified", "both", "all")
Rows = list[tuple[str, str]]
TRAINING = [
    "train.batch_tokens=4096", "train.metric=bleu", "train.patience=0", "train.optimizer.learning_rate=2e-3",
    "train.optimizer.schedule=cosine", "train.optimizer.warmup=800", "train.decode=1000",
]  # fmt: skip


STOPPED: list[int] = []  # the signal that asked to stop, if any: no further command is started


def dragoman(*arguments: object) -> str:
    """The standard output of a command."""
    if STOPPED:
        raise SystemExit("stopped; the same command goes on")
    command = [sys.executable, "-m", "dragoman", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def read(path: Path, count: int | None = None) -> Rows:
    """All pairs of a file, or so many, evenly spread."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="\n") as file:
        rows = [line.rstrip("\n").split("\t")[:2] for line in file]
    kept = range(len(rows)) if count is None or count >= len(rows) else (k * len(rows) // count for k in range(count))
    return [(rows[index][0], rows[index][1]) for index in kept]


def write(path: Path, rows: Rows) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    return path


def swapped(rows: Rows) -> Rows:
    return [(target, source) for source, target in rows]


class Study:
    """The runs of one number of pairs, each trained once: what has ended in the work folder is not trained again."""

    def __init__(self, given: argparse.Namespace, settings: list[str]) -> None:
        self.work, self.steps, self.settings = given.work.absolute(), given.steps, settings
        self.automatic = given.automatic
        self.vocabulary: list[str] = [] if given.automatic else [f"tokenizer.source.vocab_size={given.vocabulary}"]
        self.data = given.data / "tatoeba_pairs"
        self.pairs = read(self.data / "train.eng-fra.tsv.gz", given.pairs)
        self.work.mkdir(parents=True, exist_ok=True)
        valid = read(self.data / "dev.eng-fra.tsv.gz", 1000)
        self.valid = write(self.work / "valid.tsv", valid)
        write(self.work / "valid-back.tsv", swapped(valid))
        self.test = write(self.work / "test.tsv", read(self.data / "test.eng-fra.tsv.gz"))

    def share_vocabulary(self) -> None:
        """Let all runs have the vocabulary of the plain pairs: that of a run of one step."""
        run = self.train("vocabulary", self.pairs, 1, steps=1)
        self.vocabulary = ["tokenizer.source.kind=run", f"tokenizer.source.run={run}", "tokenizer.source.side=source"]
        if (run / "tokenizer" / "target.json").exists():
            self.vocabulary += ["tokenizer.target.kind=run", f"tokenizer.target.run={run}"]

    def train(self, name: str, rows: Rows, seed: int, *more: str, valid: str = "valid", steps: int = 0) -> Path:
        run: Path = self.work / f"{name}-{seed}"
        steps = steps or self.steps
        ended = self.work / f"{name}-{seed}.ended"  # its best weights are there long before
        if not ended.exists():
            pairs = write(self.work / f"{name}-{seed}.tsv", rows)
            settings = [f"train.steps={steps}", *self.vocabulary, f"train.seed={seed}", *self.settings, *more]
            if self.automatic:
                own: list[object] = [pairs, f"data.valid={self.work}/{valid}.tsv", "data.faults=skip"]
            else:
                own = [self.configuration(run, pairs, valid), *TRAINING]
                settings += [f"train.validate_every={max(1, steps // 20)}", f"train.save_every={steps}"]
            dragoman("train", *own, "--run", run, "-q", *settings)
            ended.touch()
        return run

    def configuration(self, run: Path, pairs: Path, valid: str) -> Path:
        path = run.with_suffix(".toml")
        path.write_text(
            f'preset = "transformer-small"\n[data]\ntrain = "{pairs}"\nvalid = "{self.work}/{valid}.tsv"\n'
            'faults = "skip"\n',  # a model may write what no file of pairs can hold
            encoding="utf-8",
        )
        return path

    def translated(self, run: Path, rows: Rows) -> Rows:
        """(translation, source) of every source that has a translation."""
        made, sources = self.work / f"{run.name}.made.tsv", self.work / f"{run.name}.sources.txt"
        if not made.exists():
            sources.write_text("".join(f"{source}\n" for source, _ in rows), encoding="utf-8")
            dragoman("back-translate", run, sources, "-o", made, "--mark", "", "--beam", 5, "--batch-size", 256)
        return read(made)

    def forward(self, number: int) -> Rows:
        """The pairs with the targets of a forward run."""
        return swapped(self.translated(self.train("plain", self.pairs, number), self.pairs))

    def backward(self, number: int) -> Rows:
        """The pairs with the sources of a backward run."""
        back = swapped(self.pairs)
        return self.translated(self.train("backward", back, number, valid="valid-back"), back)

    def both(self, name: str, rows: Rows, seed: int) -> Path:
        """A third of the steps in both directions, the rest in one."""
        first = self.train(f"{name}-first", rows + swapped(rows), seed, steps=self.steps // 3)
        left = self.steps - self.steps // 3
        return self.train(name, rows, seed, f"train.start_from={first}", "train.optimizer.warmup=100", steps=left)

    def system(self, name: str, seed: int, diverse: Rows) -> Path:
        """A run of one of the four systems."""
        rows = self.pairs if name in ("plain", "both") else diverse
        return self.both(name, rows, seed) if name in ("both", "all") else self.train(name, rows, seed)


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
    parser.add_argument("--systems", choices=SYSTEMS, nargs="+", default=list(SYSTEMS), help="[all four]")
    parser.add_argument("--automatic", action="store_true", help="train what `dragoman train` chooses for the pairs")
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--vocabulary", type=int, default=4000, help="sub-words, without --automatic")
    parser.add_argument("--parallel", type=int, default=4, help="runs trained at the same time")
    parser.add_argument("--score-only", action="store_true", help="score the runs that are in --work, ended or not")
    given, settings = parser.parse_known_args()
    # The trainings of the process group get the signal too; they save, and the next call goes on with them.
    signal.signal(signal.SIGTERM, lambda number, frame: STOPPED.append(number))
    study, started = Study(given, settings), time.time()
    result: dict[str, Any] = {"pairs": len(study.pairs), "automatic": given.automatic, "settings": settings}
    with ThreadPoolExecutor(given.parallel) as pool:
        if given.score_only:
            runs = {name: [study.work / f"{name}-{seed}" for seed in given.seeds] for name in given.systems}
            runs = {name: [run for run in found if (run / WEIGHTS).exists()] for name, found in runs.items()}
        else:
            study.share_vocabulary()
            numbers = range(1, given.copies + 1)
            made = [pool.submit(way, number) for way in (study.forward, study.backward) for number in numbers]
            copies = [row for job in made for row in job.result()]
            diverse = list(dict.fromkeys([*study.pairs, *copies]))
            result["with_copies"] = len(diverse)
            jobs = {
                name: [pool.submit(study.system, name, seed, diverse) for seed in given.seeds] for name in given.systems
            }
            runs = {name: [job.result() for job in waiting] for name, waiting in jobs.items()}
        for name, found in runs.items():
            for part in (study.valid, study.test):
                scores = list(pool.map(bleu, found, [part] * len(found)))
                if scores:
                    result.setdefault(name, {})[part.stem] = {"bleu": scores, "mean": round(statistics.mean(scores), 2)}
    result["seconds"] = round(time.time() - started)
    automatic = "-automatic" if given.automatic else ""
    path = HERE / "results" / f"own-pairs-{given.pairs}{automatic}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
