"""Tiny training runs of every task in forked children, and what an interrupted run must have in common with others.

Children are forked from a process that has everything imported but has never computed a gradient (autograd refuses
to run in the child of one that has), so a try costs no start-up. The tests and benchmarks/campaign share it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import random
import sys
import time
import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
FRAMES: dict[str, Any] = {
    "subsampling": {"kind": "frame-stacking", "frames": 2}, "dropout": 0.1,
    "inner": {
        "kind": "convs2s", "layers": 1, "embedding": 16, "width": 16, "kernel": 3, "dropout": 0.1, "positions": "none",
    },
}  # fmt: skip
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
    # Models that are fitted without gradients.
    "ngram": {
        "task": "language-model",
        "tokenizer": {"source": {"kind": "characters"}},
        "model": {"kind": "ngram", "order": 3},
    },
    "hmm": {"task": "tag", "tokenizer": {"source": {"kind": "characters"}}, "model": {"kind": "hmm"}},
    "transcribe": {
        "tokenizer": {
            "source": {"kind": "audio", "sample_rate": 4000, "num_mels": 8, "window": 0.02, "normalise": "corpus"},
            "target": {"kind": "characters"},
        },
        "model": {"encoder": FRAMES, "augment": {"kind": "specaugment", "time_share": 0.02, "band_share": 0.1}},
    },
    "transcribe-lines": {
        "task": "transcribe",
        "tokenizer": {"source": {"kind": "line-image", "height": 8}, "target": {"kind": "characters"}},
        "model": {"encoder": FRAMES, "augment": {"kind": "line", "shift": 1, "squeeze": 0.05}},
    },
    "caption": {
        "tokenizer": {"source": {"kind": "picture", "size": 16}, "target": {"kind": "words"}},
        "model": {
            "augment": {"kind": "picture", "shift": 1, "zoom": 0.1},
            "encoder": {"kind": "resnet", "channels": [8], "blocks": 1, "width": 16, "dropout": 0.1},
            "decoder": {"kind": "recurrent", "embedding": 16, "width": 16, "dropout": 0.1},
        },
    },
}
NEEDS = {"transcribe": "soundfile", "transcribe-lines": "PIL", "caption": "PIL"}  # packages of a task


def write_media_data(folder: Path, task: str) -> Path:
    """Small recordings or pictures of noise, each with a text."""
    draw, noise = random.Random(task), np.random.default_rng(1)
    place = folder / task
    place.mkdir()
    rows = []
    for number in range(40):
        text = "".join(draw.choices("abc", k=draw.randint(2, 4)))
        if task == "transcribe":
            name = f"{number}.wav"
            with wave.open(str(place / name), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(4000)
                file.writeframes(noise.integers(-9000, 9000, 800 + 50 * number).astype("<i2").tobytes())
        else:
            from PIL import Image

            name = f"{number}.png"
            shape = (16, 16, 3) if task == "caption" else (8, 40 + number)
            Image.fromarray(noise.integers(0, 255, shape).astype(np.uint8)).save(place / name)
        rows.append(f"{name}\t{' '.join(text) if task == 'caption' else text}\n")
    path = place / "data.tsv"
    path.write_text("".join(rows), encoding="utf-8")
    return path


def write_task_data(folder: Path, task: str) -> Path:
    """A small fixed file in the format of a task."""
    if task in NEEDS:
        return write_media_data(folder, task)
    draw = random.Random(task)
    rows = [draw.choices(("one", "two", "three", "four", "five"), k=draw.randint(2, 7)) for _ in range(200)]
    lines = {
        "classify": lambda row: f"{' '.join(row)}\t{'yes' if 'two' in row else 'no'}\n",
        "regress": lambda row: f"{' '.join(row)}\t{len(row)}\n",
        "tag": lambda row: "".join(f"{word}\t{word[0].upper()}\n" for word in row) + "\n",
    }
    data = TASKS[task].get("task", task)
    path = folder / f"{task}.{'tsv' if data in lines else 'txt'}"
    path.write_text("".join(map(lines.get(data, lambda row: f"{' '.join(row)}\n"), rows)), encoding="utf-8")
    return path


def task_table(path: Path, task: str) -> dict[str, Any]:
    """The configuration of a tiny run of another task."""
    train = {
        "steps": STEPS, "batch_tokens": 128, "save_every": SAVE_EVERY, "validate_every": VALIDATE_EVERY,
        "log_every": 4, "device": "cpu", "optimizer": {"learning_rate": 0.001, "warmup": 10},
    }  # fmt: skip
    data = {"train": str(path), "holdout": 10 if task in NEEDS else 30}
    return {"task": task, "data": data, **TASKS[task], "train": train}


def write_config(path: Path, content: dict[str, Any]) -> Path:
    """A nested table as a TOML file."""
    from dragoman.base.config import inline

    path.write_text("".join(f"{key} = {inline(value)}\n" for key, value in content.items()), encoding="utf-8")
    return path


def sha256(path: Path) -> str:
    """The hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def result(run: Path) -> dict[str, Any]:
    """Everything of a finished run that must not depend on how often it was interrupted."""
    newest = max(run.glob("checkpoints/*"), default=run / "none")  # a fitted model has none
    files = [run / "weights.safetensors", *newest.glob("*.safetensors"), *run.glob("best/*")]
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]
    return {"files": {str(path.relative_to(run)): sha256(path) for path in sorted(files)}, "metrics": rows}


def leftovers(folder: Path) -> list[str]:
    """What is being written under a folder, or was when a process was killed; the cache holds one store and no more."""
    written = [path for path in folder.rglob("*") if path.name.endswith((".part", ".old")) or path.name[:4] == ".tmp"]
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


def unloadable(run: Path) -> str:
    """Why a run folder, just as a kill left it, could not be used; empty if it could."""
    from dragoman.base.errors import DragomanError
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
    from dragoman.runs.tasks import config
    from dragoman.runs.tasks.translate import build_model
    from dragoman.scoring.report import score_table
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
    score_table(["a"], [["a"]])


# A shorter run, for those who run it often.
SHORT = {"steps": 12, "save_every": 3, "validate_every": 4, "log_every": 4}


class Driver:
    """Runs in forked children."""

    def __init__(self, folder: Path, tasks: Sequence[str] = (), pairs: int = 300) -> None:
        """`tasks` are tried besides the cases of translation; lora fine-tunes a run with adapters."""
        from dragoman.cli import guarded

        self.folder = folder
        self.guarded = guarded
        path = write_pairs(folder / "pairs.tsv", pairs)
        tables = {case: table(path, case) for case in CASES}
        for content in tables.values():
            warm_up(content)
        tables |= {task: task_table(write_task_data(folder, task), task) for task in tasks if task in TASKS}
        if "lora" in tasks:
            tables["lora"] = table(path)
            tables["lora"]["train"] |= {"start_from": str(folder / "preload" / "run"), "lora": {"rank": 2}}
        for number, content in enumerate(tables.values()):
            content["train"] |= SHORT | ({"save_every": 100} if number % 2 else {})  # then only validations save
        self.configs = {case: write_config(folder / f"{case}.toml", one) for case, one in tables.items()}
        self._preload()

    def _preload(self) -> None:
        """Import what a run imports late, so that no child has to."""
        folder = self.folder / "preload"
        folder.mkdir()
        known, names = set(sys.modules), folder / "modules.txt"

        def work() -> int:
            os.environ["DRAGOMAN_CACHE"] = str(folder / "cache")
            arguments = [str(self.configs["best"]), "--quiet", "--run", str(folder / "run"), "train.steps=1"]
            code = self.guarded(["train", *arguments])
            names.write_text("\n".join(sorted(set(sys.modules) - known)), encoding="utf-8")
            return code

        assert ended(fork(work, folder / "errors.txt"), 120) == 0, (folder / "errors.txt").read_text(encoding="utf-8")
        for name in names.read_text(encoding="utf-8").split():
            with contextlib.suppress(ImportError):
                importlib.import_module(name)

    def start(self, case: str, folder: Path, before: Callable[[], None] = lambda: None, *overrides: str) -> int:
        """Start or resume a run as the command line would, after `before` in the child; gives the child's id."""

        def work() -> int:
            os.environ["DRAGOMAN_CACHE"] = str(folder / "cache")
            before()
            return self.guarded(["train", str(self.configs[case]), "--quiet", "--run", str(folder / "run"), *overrides])

        return fork(work, folder / "errors.txt")
