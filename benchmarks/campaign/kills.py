"""Kill training runs of every task at random moments: every state must load, and the end must be the same.

A run is killed up to five times and then left alone. A kill (SIGKILL) falls at a random time, into the start, into the
writing of a file, or into a named moment: tokenising, validating, averaging, saving the best weights and others. The
timer of such a moment ends the process by SIGALRM, for which nobody listens, so that nothing is cleaned up either. One
life in eight is interrupted by SIGTERM or SIGINT instead, and must save and say so.

python benchmarks/campaign/kills.py [N] [--tasks TASKS] [--processes P] [--seconds S] [--output FAILURES] [--seed SEED]
"""

from __future__ import annotations

import argparse
import importlib
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.campaign.lanes import Lanes, Outcome, add_options, scratch
from tests.training.kill_driver import CASES, NEEDS, TASKS, Driver, ended, leftovers, result, unloadable, writing

LIVES, MAX_SECONDS = 5, 120
# Moments: module, and function or class and method.
MOMENTS: dict[str, tuple[str, str]] = {
    "reading media": ("dragoman.data.corpus", "extract_features"),
    "tokenising": ("dragoman.data.corpus", "write_store"),
    "creating the run": ("dragoman.runs.plan", "create_run"),
    "fitting": ("dragoman.training.trainer", "Fitter.train"),
    "resuming": ("dragoman.training.checkpointer", "Checkpointer.restore"),
    "validating": ("dragoman.training.trainer", "Trainer._validate"),
    "averaging": ("dragoman.training.optimizer", "MovingAverage.update"),
    "averaging the best": ("dragoman.training.checkpointer", "BestWeights._write_mean"),
    "saving best": ("dragoman.training.checkpointer", "BestWeights.keep"),
    "pruning": ("dragoman.training.checkpointer", "BestWeights.prune"),
    "saving a checkpoint": ("dragoman.training.checkpoints", "Checkpoints.save"),
    "logging": ("dragoman.training.metrics_log", "MetricsLog.append"),
}
NAMES = list(MOMENTS)
Work = Callable[..., Any]
SLOT = struct.Struct("<qd")  # of a moment: how often it was entered, and seconds


class Clock:
    """Shared with a child: in which moment it is, and how often and how long it was in each."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 1 + SLOT.size * len(NAMES))

    def clear(self) -> None:
        self.memory[:] = bytes(len(self.memory))

    @property
    def moment(self) -> str:
        """The moment that the child is or was in; empty if none."""
        place = self.memory[0]
        return NAMES[place - 1] if place else ""

    def totals(self, name: str) -> tuple[int, float]:
        """How often a moment was entered, and the seconds of those that are over."""
        count, seconds = SLOT.unpack_from(self.memory, 1 + SLOT.size * NAMES.index(name))
        return count, seconds

    def install(self, at: tuple[str, int, float] | None = None, number: int = 0) -> None:
        """In the child: watch all moments, and end the process in the n-th of a name, after so many seconds.

        `number` is the signal; 0: SIGALRM itself, whose default action ends a process at once.
        """
        if number:
            signal.signal(signal.SIGALRM, lambda *given: os.kill(os.getpid(), number))
        for name, (module, path) in MOMENTS.items():
            owner: Any = importlib.import_module(module)
            *inside, last = path.split(".")
            for part in inside:
                owner = getattr(owner, part)
            setattr(owner, last, self._watched(name, getattr(owner, last), at))

    def _watched(
        self, name: str, function: Callable[..., Any], at: tuple[str, int, float] | None
    ) -> Callable[..., Any]:
        place = NAMES.index(name)

        def watched(*given: Any, **named: Any) -> Any:
            count, seconds = self.totals(name)
            before, self.memory[0] = self.memory[0], place + 1
            SLOT.pack_into(self.memory, 1 + SLOT.size * place, count + 1, seconds)
            started = time.monotonic()
            if at is not None and at[:2] == (name, count + 1):
                signal.setitimer(signal.ITIMER_REAL, max(1e-6, at[2]))
            try:
                return function(*given, **named)
            finally:
                SLOT.pack_into(self.memory, 1 + SLOT.size * place, count + 1, seconds + time.monotonic() - started)
                self.memory[0] = before

        return watched


class Kills:
    """Straight runs, and runs that are killed again and again."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, lives: int) -> None:
        wanted = arguments.tasks.split(",") if arguments.tasks else [*CASES, *TASKS, "lora"]
        for task, package in NEEDS.items():
            if task in wanted and find_spec(package) is None:
                print(f"{task}: left out, since {package} is not installed")
                wanted.remove(task)
        self.driver = Driver(folder, [task for task in wanted if task not in CASES])
        self.names = [name for name in self.driver.configs if name in wanted]
        self.seed, self.lives, self.keep, self.clock = arguments.seed, lives, arguments.output, Clock()
        self.expected: dict[str, dict[str, Any]] = {}
        self.seconds: dict[str, float] = {}
        self.usual: set[str] = set()  # lines that runs print on standard error when left alone
        self.moments: dict[str, dict[str, tuple[int, float]]] = {}
        for case in self.names:
            self._straight(case, folder / f"straight-{case}")

    def _straight(self, case: str, folder: Path) -> None:
        """What a run that is left alone gives, how long it takes, and which moments it has."""
        folder.mkdir()
        self.clock.clear()
        started = time.monotonic()
        code = ended(self.driver.start(case, folder, self.clock.install), MAX_SECONDS)
        self.seconds[case] = time.monotonic() - started
        assert code == 0, (folder / "errors.txt").read_text(encoding="utf-8")
        self.expected[case] = result(folder / "run")
        self.usual |= set(stderr_lines(folder))
        self.moments[case] = {name: found for name in NAMES if (found := self.clock.totals(name))[0]}
        shutil.rmtree(folder)

    def __call__(self, number: int, folder: Path) -> Outcome:
        """Kill one run several times, and compare its end with that of the straight run."""
        draw = random.Random(f"{self.seed}/{number}")
        case = self.names[number % len(self.names)]
        counts, wrong = Counter({f"runs of {case}": 1}), []
        code: int | None = None
        for _ in range(self.lives):
            code, problem = self._life(case, folder, draw, counts)
            wrong += [problem] if problem else []
            if code is not None:
                break
        if code is None:
            code = ended(self.driver.start(case, folder), MAX_SECONDS)
            wrong += [problem] if (problem := self._said(folder)) else []
        if code != 0:
            wrong.append(f"exit code {code}")
        elif left := leftovers(folder):
            wrong.append(f"left {left}")
        elif result(folder / "run") != self.expected[case]:
            wrong.append("the end differs from that of a run that was left alone")
        if wrong and self.keep is not None:
            shutil.copytree(folder, Path(f"{self.keep}.{self.seed}-{number}"), dirs_exist_ok=True)
        return Outcome(counts, f"--seed {self.seed}, {case}: {'; '.join(wrong)}" if wrong else "")

    def _life(self, case: str, folder: Path, draw: random.Random, counts: Counter[str]) -> tuple[int | None, str]:
        """Start or resume a run, and end it after a while: its exit code or None if it was killed; what is wrong."""
        number = draw.choice((signal.SIGTERM, signal.SIGINT)) if draw.random() < 1 / 8 else signal.SIGKILL
        kind, at, delay = draw.random(), None, draw.uniform(0, 0.8 * self.seconds[case])
        if kind < 0.2:  # the start
            delay = draw.uniform(0, 0.15)
        elif kind < 0.6:
            name = draw.choice(list(self.moments[case]))
            count, seconds = self.moments[case][name]
            at, delay = (name, draw.randint(1, count), draw.uniform(0, seconds / count)), MAX_SECONDS
        self.clock.clear()
        silent = 0 if number == signal.SIGKILL else number
        child = self.driver.start(case, folder, lambda: self.clock.install(at, silent))
        code = ended(child, delay)
        while code is None and kind > 0.8 and not writing(folder):
            code = ended(child, 0)
        if code is None:
            os.kill(child, number)
            code = ended(child, MAX_SECONDS)
        counts["lives"] += 1
        if code in (-signal.SIGKILL, -signal.SIGALRM):
            counts["kills"] += 1
            counts[f"killed while {self.clock.moment or self._elsewhere(folder)}"] += 1
        elif code in (128 + number, -number):  # before Dragoman listens the signal ends the process
            counts["interruptions"] += 1
            counts[f"interrupted while {at[0] if at else self.clock.moment or self._elsewhere(folder)}"] += 1
        else:
            return code if code is not None else -1, self._said(folder)
        wrong = unloadable(folder / "run") if (folder / "run").exists() else ""
        return None, wrong or self._said(folder)

    def _said(self, folder: Path) -> str:
        """What the last life said that it should not have."""
        odd = [line for line in stderr_lines(folder) if line not in self.usual and not line.startswith(EXPECTED)]
        return " / ".join(odd)

    @staticmethod
    def _elsewhere(folder: Path) -> str:
        return "training or ending" if (folder / "run" / "checkpoints").exists() else "starting"


# A kill must never damage a checkpoint: falling back with a warning would hide it.
EXPECTED = ("warning: training has diverged", "stopped and saved at step ", "interrupted")


def stderr_lines(folder: Path) -> list[str]:
    """What the last life printed on standard error."""
    path = folder / "errors.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", nargs="?", type=int, default=100)
    parser.add_argument("--tasks", default="", help="kill runs of these only, such as ema,classify,caption")
    add_options(parser)
    arguments = parser.parse_args()
    with scratch("kills") as folder:
        lives = min(LIVES, arguments.kills)
        kills = Kills(Path(folder), arguments, lives)
        lanes = Lanes("kills", Path(folder), arguments, (lives + 1) * 2 * MAX_SECONDS)
        report = lanes.run(1 << 40, kills, lambda counts: counts["kills"] >= arguments.kills)
    return report.show()


if __name__ == "__main__":
    sys.exit(main())
