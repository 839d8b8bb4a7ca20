"""Stop a tiny run at each kind of moment, and resume it: `test_kill_and_resume` runs this as a script.

Runs are forked from a process that has never computed a gradient, so a kill is a kill: nothing is cleaned up.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.training.checkpoints import Checkpoints
from tests.training.kill_driver import Driver, ended, leftovers, result, unloadable

SECONDS = 300.0  # of a life; no test waits for so long
LOG, SAVED = "dragoman.training.metrics_log", "dragoman.training.checkpoints"
TRAINER, KEPT = "dragoman.training.trainer", "dragoman.training.checkpointer"


class Moment(NamedTuple):
    """The n-th call of a function in one life of a run."""

    module: str
    path: str
    number: int
    when: str = "before"  # or "after", or "half" of what it would write

    def install(self, stop: Callable[[], None]) -> None:
        """Let `stop` be called at this moment."""
        owner: Any = importlib.import_module(self.module)
        *inside, last = self.path.split(".")
        for part in inside:
            owner = getattr(owner, part)
        function, calls = getattr(owner, last), iter(range(1, 10_000))

        def watched(*given: Any, **named: Any) -> Any:
            if next(calls) != self.number:
                return function(*given, **named)
            if self.when == "half":
                path, text = given
                function(path, text[: len(text) // 2])
            if self.when != "after":
                stop()
            done = function(*given, **named)
            if self.when == "after":
                stop()
            return done

        setattr(owner, last, watched)


# Logs and validates after every third step; "ema" saves after every second, "best" when it has validated.
SHORT = ("train.steps=6", "train.validate_every=3", "train.log_every=3", "train.batch_tokens=64", "train.decode=4")
VALIDATOR = "dragoman.training.validation"
MOMENTS = {
    "the run is not created": Moment("dragoman.runs.plan", "create_run", 1),
    "before the first step": Moment(TRAINER, "Trainer._validation_due", 1),
    "in the middle of an epoch": Moment(TRAINER, "Trainer._step", 4),
    "the moving average is updated": Moment("dragoman.training.optimizer", "MovingAverage.update", 4),
    "the best weights are averaged": Moment(KEPT, "BestWeights._write_mean", 2),
    "in a validation": Moment(VALIDATOR, "Seq2SeqValidator.measure", 1),
    "a validation is logged, its weights are not kept": Moment(KEPT, "BestWeights.keep", 1),
    "weights are kept, the checkpoint is not written": Moment(KEPT, "BestWeights.keep", 1, "after"),
    "a file of a checkpoint is written": Moment(SAVED, "sync", 5),
    "the checkpoint is not in its place": Moment(SAVED, "Checkpoints.commit", 2),
    "the checkpoint is saved, metrics are not logged": Moment(LOG, "MetricsLog.append", 2),
    "half a line of metrics is written": Moment(LOG, "append_text", 2, "half"),
    "metrics are logged, the checkpoint is not saved": Moment(LOG, "MetricsLog.append", 3, "after"),
    "the last step is done": Moment(TRAINER, "Trainer._step", 6, "after"),
    "in the last validation": Moment(VALIDATOR, "Seq2SeqValidator.measure", 2),
    "all is saved": Moment(TRAINER, "Trainer.train", 1, "after"),
}
RESUMED = Moment(KEPT, "Checkpointer.restore", 1, "after")  # of the life after another stop
IN_BEST = ("the best weights are averaged",)  # and not in "ema"
# Where a signal interrupts, or comes between two things that belong together: elsewhere it waits for the loop.
SIGNALLED = (
    "before the first step", "in the middle of an epoch", "in a validation", "the checkpoint is not in its place",
    "the last step is done", "the run is resumed",
)  # fmt: skip


def cells() -> list[tuple[str, str, str]]:
    """The moments, each with a signal and the case of `kill_driver` whose run it stops."""
    names = (*MOMENTS, "the run is resumed", "the old checkpoint is moved aside")
    in_best = (*IN_BEST, "the old checkpoint is moved aside")  # it saves a step before and after its validation
    killed = [(name, "SIGKILL", "best" if name in in_best else "ema") for name in names]
    return [*killed, *((name, "SIGTERM", "best") for name in SIGNALLED)]


def move_aside(stop: Callable[[], None]) -> None:
    """Let `stop` be called when an older checkpoint of the same step has left its place for the new one."""
    rename = Path.replace

    def watched(self: Path, target: Path) -> Path:
        done = rename(self, target)
        if target.name.endswith(".old"):
            stop()
        return done

    Path.replace = watched  # type: ignore[method-assign]


class Matrix:
    """Runs that are stopped, and what they are compared with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.driver = folder, Driver(folder, pairs=100)
        self.expected: dict[str, dict[str, Any]] = {}
        for case in ("ema", "best"):
            assert self._life(case, folder / f"straight-{case}", lambda: None) == 0
            self.expected[case] = result(folder / f"straight-{case}" / "run")

    def _life(self, case: str, place: Path, install: Callable[[], Any]) -> int | None:
        place.mkdir(exist_ok=True)
        save = () if case == "best" else ("train.save_every=2",)
        return ended(self.driver.start(case, place, install, *SHORT, *save), SECONDS)

    def cell(self, name: str, kind: str, case: str) -> str:
        """Stop a run, resume it, and compare its end; what is wrong, or nothing."""
        place, number = self.folder / f"{name} {kind}", signal.Signals[kind]
        first = MOMENTS.get(name, MOMENTS["in the middle of an epoch"]).install
        lives = [move_aside] if name == "the old checkpoint is moved aside" else [first]
        for install in [*lives, RESUMED.install] if name == "the run is resumed" else lives:
            code = self._life(case, place, partial(install, partial(signal.raise_signal, number)))
            said = (place / "errors.txt").read_text(encoding="utf-8")
            if code != (-number if number == signal.SIGKILL else 128 + number):
                return f"exit code {code}: {said}"
            if (place / "run").exists() and (wrong := unloadable(place / "run")):
                return wrong
            if number != signal.SIGKILL:
                saved = Checkpoints(place / "run").steps()
                told = f"stopped and saved at step {saved[-1]};" if any(saved) else "stopped before anything was saved;"
                if told not in said:
                    return f"found checkpoints of {saved}: {said}"
        if (code := self._life(case, place, lambda: None)) != 0:
            return f"exit code {code} at the end: {(place / 'errors.txt').read_text(encoding='utf-8')}"
        if left := leftovers(place):
            return f"left {left}"
        rows = result(place / "run")
        return "" if rows == self.expected[case] else f"the end differs: {rows} is not {self.expected[case]}"


if __name__ == "__main__":
    matrix = Matrix(Path(sys.argv[1]))
    found = {f"{name}, {kind}": matrix.cell(name, kind, case) for name, kind, case in cells()}
    (matrix.folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
