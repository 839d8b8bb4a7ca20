"""Kill a training run at random moments and prove that it ends with the same bits as one that was left alone.

Children are forked from a process that has everything imported but has never computed a gradient (autograd refuses
to run in the child of one that has), so a try costs no start-up. The tests and benchmarks/campaign/kills.py share it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STEPS, SAVE_EVERY, VALIDATE_EVERY = 40, 3, 10
TRANSFORMER = {"kind": "transformer", "layers": 1, "width": 16, "heads": 2, "feedforward": 32, "dropout": 0.1}
RECURRENT: dict[str, Any] = {"kind": "recurrent", "layers": 1, "embedding": 16, "width": 16, "dropout": 0.1}
CASES: dict[str, dict[str, Any]] = {
    "ema": {"encoder": TRANSFORMER, "decoder": TRANSFORMER, "average": {"kind": "ema", "decay": 0.9}},
    "best": {"encoder": TRANSFORMER, "decoder": TRANSFORMER, "average": {"kind": "best", "count": 3}},
    "recurrent": {
        "encoder": RECURRENT, "decoder": RECURRENT | {"attention": {"width": 16}},
        "average": {"kind": "ema", "decay": 0.9},
    },
}  # fmt: skip
TIMES = ("seconds", "tokens_per_second")  # the only fields of metrics.jsonl that may differ between two runs


def write_pairs(path: Path, count: int = 300, seed: int = 0) -> Path:
    """A small fixed corpus: words of a few letters, and the same reversed."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 9))) for _ in range(count)]
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words), encoding="utf-8")
    return path


def table(pairs: Path, case: str = "ema") -> dict[str, Any]:
    """The configuration of a tiny run with everything on that resuming could get wrong."""
    parts = CASES[case]
    return {
        "data": {"train": str(pairs), "holdout": 30},
        "tokenizer": {"source": {"kind": "characters"}},
        "model": {"encoder": parts["encoder"], "decoder": parts["decoder"], "word_dropout": 0.1},
        "train": {
            "steps": STEPS,
            "batch_tokens": 128,
            "accumulate": 2,
            "save_every": SAVE_EVERY,
            "validate_every": VALIDATE_EVERY,
            "log_every": 4,
            "decode": 8,
            "device": "cpu",
            "optimizer": {"learning_rate": 0.01, "warmup": 10, "weight_decay": 0.01},
            "average": parts["average"],
        },
        "search": {"max_length": 6},
    }


SMALL = {"kind": "transformer", "layers": 1, "width": 16, "heads": 2, "feedforward": 32, "dropout": 0.1}
# Other tasks: what their configuration has besides the data and the training.
TASKS: dict[str, dict[str, Any]] = {
    "classify": {"tokenizer": {"source": {"kind": "words"}}, "model": {"encoder": SMALL}},
    "regress": {"tokenizer": {"source": {"kind": "words"}}, "model": {"encoder": SMALL}},
    "tag": {"tokenizer": {"source": {"kind": "words"}}, "model": {"encoder": SMALL}},
    "language-model": {"tokenizer": {"source": {"kind": "characters"}}, "model": {"stack": SMALL}},
    "masked-language-model": {
        "tokenizer": {"source": {"kind": "characters"}},
        "model": {"encoder": SMALL | {"kind": "bert"}},
    },
}


def write_task_data(folder: Path, task: str) -> Path:
    """A small fixed file in the format of a task."""
    draw = random.Random(task)
    rows = [draw.choices(("one", "two", "three", "four", "five"), k=draw.randint(2, 7)) for _ in range(200)]
    lines = {
        "classify": lambda row: f"{' '.join(row)}\t{'yes' if 'two' in row else 'no'}\n",
        "regress": lambda row: f"{' '.join(row)}\t{len(row)}\n",
        "tag": lambda row: "".join(f"{word}\t{word[0].upper()}\n" for word in row) + "\n",
    }
    path = folder / f"{task}.{'tsv' if task in lines else 'txt'}"
    path.write_text("".join(map(lines.get(task, lambda row: f"{' '.join(row)}\n"), rows)), encoding="utf-8")
    return path


def task_table(path: Path, task: str) -> dict[str, Any]:
    """The configuration of a tiny run of another task."""
    train = {
        "steps": STEPS, "batch_tokens": 128, "save_every": SAVE_EVERY, "validate_every": VALIDATE_EVERY,
        "log_every": 4, "device": "cpu", "optimizer": {"learning_rate": 0.001, "warmup": 10},
    }  # fmt: skip
    return {"task": task, "data": {"train": str(path), "holdout": 30}, **TASKS[task], "train": train}


def write_config(path: Path, content: dict[str, Any]) -> Path:
    """A nested table as a TOML file."""
    from dragoman.config.settings import inline

    path.write_text("".join(f"{key} = {inline(value)}\n" for key, value in content.items()), encoding="utf-8")
    return path


def sha256(path: Path) -> str:
    """The hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def result(run: Path) -> dict[str, Any]:
    """Everything of a finished run that must not depend on how often it was interrupted."""
    newest = max((run / "checkpoints").iterdir())
    files = [run / "weights.safetensors", *newest.glob("*.safetensors"), *(run / "best").iterdir()]
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]
    return {"files": {str(path.relative_to(run)): sha256(path) for path in sorted(files)}, "metrics": rows}


def leftovers(folder: Path) -> list[str]:
    """What is being written under a folder, or was when a process was killed; the cache holds one store and no more."""
    written = [path for path in folder.rglob("*") if path.name.endswith((".part", ".old"))]
    return [str(path.relative_to(folder)) for path in (*written, *folder.glob("cache/*.*"))]


def writing(folder: Path) -> bool:
    """Whether a running process is in the middle of writing something."""
    try:
        return bool(leftovers(folder))
    except FileNotFoundError:  # renamed while we looked
        return True


def fork(work: Callable[[], int], errors: Path) -> int:
    """Run something in a child with its standard error in a file; gives the child's id."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        log = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 2)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")
        code = work()
        sys.stderr.flush()
    finally:
        os._exit(code)


def ended(child: int, within: float) -> int | None:
    """The exit code of a child (negative for a signal), or None if it still runs after so many seconds."""
    end = time.monotonic() + within
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        left = end - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(left, 0.002))


@dataclass
class Campaign:
    """What came of many kills."""

    kills: int = 0
    unloadable: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    moments: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether every state could be loaded and every end was the same."""
        return not self.unloadable and not self.differing

    def line(self) -> str:
        """The summary."""
        where = ", ".join(f"{count} {moment}" for moment, count in sorted(self.moments.items()))
        return (
            f"{self.kills} kills ({where}), unloadable states {len(self.unloadable)}, "
            f"distinct final hashes {1 + len(self.differing)}, {self.seconds:.0f} s"
        )


def moment(folder: Path) -> str:
    """What a killed run was doing, as far as its files tell."""
    run = folder / "run"
    if leftovers(folder):
        return "while writing"
    if not run.exists():
        return "before the run folder"
    steps = sorted((run / "checkpoints").glob("[0-9]*"))
    if not steps:
        return "before a checkpoint"
    return "after the last step" if int(steps[-1].name) == STEPS else "between checkpoints"


def unloadable(run: Path) -> str:
    """Why a run folder, just as a kill left it, could not be used; empty if it could."""
    from dragoman.errors import DragomanError
    from dragoman.runs import Run
    from dragoman.training.checkpoints import Checkpoints, read_tensors

    try:
        found = Run(run)
        found.tokenizers()
        assert found.data
        if (run / "weights.safetensors").exists():
            read_tensors(run / "weights.safetensors")
        checkpoints = Checkpoints(run)
        if steps := checkpoints.steps():
            checkpoints.load(steps[-1])
    except DragomanError as error:
        return str(error)
    return ""


def warm_up(content: dict[str, Any]) -> None:
    """Load whatever training loads late, so that every forked child has it; computes no gradient."""
    import torch

    from dragoman import runs
    from dragoman.data.batch import batch_of
    from dragoman.scoring import score_text
    from dragoman.tasks import config
    from dragoman.tasks.translate import build_model
    from dragoman.training import display
    from dragoman.training.optimizer import build_optimizer

    assert runs
    assert display
    torch.set_num_threads(1)
    built = config.build(content)
    model = build_model(built, 12, 12)
    with torch.no_grad():
        model(batch_of([[4, 5]], [[5, 4]]))
    for part in model.parameters():
        part.grad = torch.zeros_like(part)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    build_optimizer(built.train.optimizer, model).step()
    score_text(["a"], [["a"]])


class Driver:
    """Straight runs, and runs that are killed again and again."""

    def __init__(self, folder: Path, tasks: Sequence[str] = ()) -> None:
        """`tasks` are tried besides the cases of translation."""
        from dragoman.cli import guarded

        self.folder = folder
        self.guarded = guarded
        pairs = write_pairs(folder / "pairs.tsv")
        for case in CASES:
            warm_up(table(pairs, case))
        self.configs = {case: write_config(folder / f"{case}.toml", table(pairs, case)) for case in CASES}
        for task in tasks:
            content = task_table(write_task_data(folder, task), task)
            self.configs[task] = write_config(folder / f"{task}.toml", content)
        self.straight: dict[str, tuple[dict[str, Any], float]] = {}

    def start(self, case: str, folder: Path, *overrides: str) -> int:
        """Start or resume a run as the command line would; gives the child's id."""

        def work() -> int:
            os.environ["DRAGOMAN_CACHE"] = str(folder / "cache")
            return self.guarded(["train", str(self.configs[case]), "--quiet", "--run", str(folder / "run"), *overrides])

        return fork(work, folder / "errors.txt")

    def expected(self, case: str) -> tuple[dict[str, Any], float]:
        """What a run that is left alone gives, and how long it takes."""
        if case not in self.straight:
            folder = self.folder / f"straight-{case}"
            folder.mkdir()
            started = time.monotonic()
            code = ended(self.start(case, folder), 120)
            seconds = time.monotonic() - started
            assert code == 0, (folder / "errors.txt").read_text(encoding="utf-8")
            self.straight[case] = result(folder / "run"), seconds
        return self.straight[case]

    def campaign(self, kills: int, seed: int = 0, lives: int = 5) -> Campaign:
        """Kill runs at random moments, up to so many times each, and compare their ends with the straight run's."""
        draw = random.Random(seed)
        done = Campaign()
        started = time.monotonic()
        number = 0
        while done.kills < kills:
            case = list(self.configs)[number % len(self.configs)]
            expected, seconds = self.expected(case)
            folder = self.folder / f"killed-{number}"
            folder.mkdir()
            code: int | None = None
            for _ in range(min(lives, kills - done.kills)):
                # A quarter of the kills fall into start-up, reading, tokenising and the first steps, and a quarter
                # into the writing of some file.
                kind = draw.random()
                delay = draw.uniform(0, 0.15) if kind < 0.25 else draw.uniform(0, 0.7 * seconds)
                code = self._life(case, folder, delay, done, in_writing=kind > 0.75)
                if code is not None:
                    break
            if code is None:
                code = self._life(case, folder, None, done)
            left = leftovers(folder)
            if code != 0 or left or result(folder / "run") != expected:
                done.differing.append(f"{folder.name}: {case}, exit code {code}, left {left}")
            else:
                shutil.rmtree(folder)
            number += 1
        done.seconds = time.monotonic() - started
        return done

    def _life(
        self, case: str, folder: Path, delay: float | None, done: Campaign, in_writing: bool = False
    ) -> int | None:
        """Start or resume a run, and kill it after a while; its exit code, or None if it was killed."""
        child = self.start(case, folder)
        code = ended(child, 120 if delay is None else delay)
        while code is None and in_writing and not writing(folder):
            code = ended(child, 0)
        wrong = ""
        if code is None:
            os.kill(child, signal.SIGKILL)
            code = ended(child, 120)
            assert code is not None
            if code == -signal.SIGKILL:
                done.kills += 1
                done.moments[moment(folder)] += 1
                wrong = unloadable(folder / "run") if (folder / "run").exists() else ""
                code = None
        if (folder / "errors.txt").exists():
            # A kill must never damage a checkpoint: falling back with a warning would hide it.
            said = (folder / "errors.txt").read_text(encoding="utf-8").splitlines(keepends=True)
            wrong = wrong or "".join(line for line in said if not line.startswith("warning: training has diverged"))
        if wrong:
            done.unloadable.append(f"{folder.name}: {wrong}")
        return code
