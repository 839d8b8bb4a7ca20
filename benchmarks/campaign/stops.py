"""Stop searches, adaptations, curves and comparisons at random moments by random signals, and give the command again.

A stop is Ctrl-C or SIGTERM, to the command alone or to its whole process group as a terminal and `timeout` send it, or
a kill (SIGKILL) of the command or of one of its workers. After each one the command must have ended within ten
seconds, with the exit code of the signal and no process left, and `dragoman info` must explain the folder; the command
that it prints to use the best trial so far must work. Up to three stops later the command is left alone: its result
must be that of a command that nothing stopped. A worker that is killed changes no result at all.

Commands are forked from a process that has everything imported, and so are their workers. One case in `--spawned` runs
as users start it instead, where a signal may also fall into the imports.

python benchmarks/campaign/stops.py [N] [--kinds KINDS] [--spawned N] [--processes P] [--seconds S] [--output FAILURES]
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.campaign.lanes import Lanes, Outcome, add_options, scratch
from tests.training.kill_driver import ended, fork, leftovers, sha256, table, warm_up, write_pairs

STOPS, MAX_SECONDS, WITHIN = 3, 240.0, 10.0  # of a case; of a command; in which a stopped one ends
TINY = ["train.decode=10", "train.batch_tokens=128", "train.device=cpu", "train.save_every=2", "train.validate_every=3"]
SMALL = ["preset=luong-2015-small", "model.encoder.width=8", "model.decoder.width=8", *TINY]
ADAPTING = ["train.steps=24", "train.validate_every=6", "train.patience=0", "train.optimizer.learning_rate=1e-2"]
CONFIG = """
[data]
train = "{pairs}"
[tokenizer.source]
kind = "characters"
[model]
encoder = {{ kind = "recurrent", width = {width}, embedding = 8 }}
decoder = {{ kind = "recurrent", width = {width}, embedding = 8 }}
[train]
steps = 9
validate_every = 3
save_every = 2
decode = 10
batch_tokens = 128
device = "cpu"
optimizer = {{ warmup = 2 }}
"""
TASK = '[data]\ntrain = "../../pairs.tsv"\nvalid = "../../valid.tsv"\n[train]\nmetric = "chrf"\n'
Before = Callable[[], None]


class Commands:
    """The commands that are stopped, on data that all cases share."""

    def __init__(self, place: Path) -> None:
        self.place = place
        write_pairs(place / "pairs.tsv", 150)
        write_pairs(place / "many.tsv", 400)
        write_pairs(place / "valid.tsv", 160, seed=1)
        rows = [line.split("\t") for line in write_pairs(place / "raw.tsv", 60, seed=2).read_text().splitlines()]
        fixed = "".join(f"aa{source}\tx\tJ{target}\n" for source, target in rows)
        (place / "corrections.tsv").write_text(fixed, encoding="utf-8")
        (place / "inputs.txt").write_text("abc\nfed\n", encoding="utf-8")
        for name, width in (("one", 8), ("two", 12)):
            text = CONFIG.format(pairs=place / "pairs.tsv", width=width)
            (place / f"{name}.toml").write_text(text, encoding="utf-8")
        (place / "tasks" / "task").mkdir(parents=True)
        (place / "tasks" / "task" / "task.toml").write_text(TASK, encoding="utf-8")
        pairs, valid = str(place / "pairs.tsv"), f"data.valid={place / 'valid.tsv'}"
        two = ["train", pairs, "--trials", "2"]
        configs = [str(place / "one.toml"), str(place / "two.toml")]
        adapting = [str(place / "corrections.tsv"), "--general", str(place / "many.tsv")]
        self.words: dict[str, list[str]] = {
            "search": ["train", pairs, "--trials", "3", "--run", "RUN", *TINY, valid, "train.steps=9"],
            "ensemble": [*two, "--ensemble", "2", "--run", "RUN", *TINY, valid, "train.steps=6"],
            "folds": [*two, "--run", "RUN", *TINY, "train.steps=6"],
            "timed": ["train", pairs, "--time", "8s", "--run", "RUN", *TINY, valid],
            "adapt": ["adapt", "RUN", *adapting, *ADAPTING, "--json"],
            "curve": ["curve", str(place / "many.tsv"), "--run", "RUN", "train.steps=6", *SMALL, "--json"],
            "compare": ["compare", *configs, "--test", str(place / "valid.tsv"), "--folder", "RUN", "--json"],
            "tasks": ["compare", *configs, "--tasks", str(place / "tasks"), "--folder", "RUN", "--json"],
        }  # fmt: skip

    def of(self, kind: str, run: Path) -> list[str]:
        return [str(run) if word == "RUN" else word for word in self.words[kind]]


SIZES = {"width": 16, "embedding": 16, "feedforward": 32, "heads": 2, "layers": 1}


def small(config: Any) -> Any:
    """A configuration with a small model, and the rest as it was."""
    from dragoman.base import config as settings
    from dragoman.runs.tasks import from_table

    def shrink(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: SIZES[key] if key in SIZES and one else shrink(one) for key, one in value.items()}
        return value

    table: dict[str, Any] = settings.as_table(config)
    return from_table({**table, "model": shrink(table["model"])})


def choose_small_models() -> None:
    """Let searches of this process choose small models, which train in a moment."""
    from dragoman.auto.search import verb

    choose = verb.configure_candidates

    def choose_small(*given: Any) -> Any:
        configs, reasons = choose(*given)
        return {name: small(config) for name, config in configs.items()}, reasons

    verb.configure_candidates = choose_small


def begin(words: list[str], folder: Path, before: Before = lambda: None) -> int:
    """Start a command as the leader of a process group; gives its id. Its outputs go to files of the folder."""
    from dragoman import cli
    from dragoman.auto.search import worker

    def work() -> int:
        os.environ["DRAGOMAN_CACHE"] = str(folder / "cache")
        os.dup2(os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        serve, start = worker.serve, cli.cli.main
        context = multiprocessing.get_context("fork")
        multiprocessing.get_context = lambda method: context  # type: ignore[assignment,misc]

        def serve_alone(pipe: Any, run: Any) -> None:
            """A worker that was spawned has neither the handlers of the search nor its open files."""
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            parent = multiprocessing.parent_process()
            assert parent is not None
            kept = {0, 1, 2, pipe.fileno(), parent.sentinel}
            for path in Path("/proc/self/fd").iterdir():
                with suppress(OSError):
                    if int(path.name) not in kept:
                        os.close(int(path.name))
            serve(pipe, lambda job: (run(job), note_modules(folder))[0])

        def started(*given: Any, **named: Any) -> Any:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
            return start(*given, **named)

        choose_small_models()
        worker.serve, cli.cli.main = serve_alone, started  # type: ignore[method-assign]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        before()
        code = cli.guarded(words)
        sys.stdout.flush()
        note_modules(folder)
        return code

    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # until the command has begun
    try:
        child = fork(lambda: (os.setsid(), work())[1], folder / "errors.txt")
        while os.getpgid(child) != child:
            time.sleep(0.001)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    return child


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def note_modules(folder: Path) -> None:
    with (folder / "modules.txt").open("a", encoding="utf-8") as file:
        file.write(" ".join(sys.modules) + "\n")


PROGRAM = """
from benchmarks.campaign.stops import choose_small_models
choose_small_models()
from dragoman.cli import run
run()
"""


def spawn(words: list[str], folder: Path) -> int:
    """Start a command as a user does; gives its id."""
    variables = os.environ | {"DRAGOMAN_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    variables["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    with (folder / "errors.txt").open("w") as errors, (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words], stdout=output, stderr=errors, start_new_session=True,
            env=variables, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
    process.returncode = 0  # `ended` waits for it
    return process.pid


def group_of(leader: int) -> dict[int, str]:
    """The living processes of a group besides its leader, with their command lines."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(group) == leader and state not in "ZX" and int(stat.parent.name) != leader:
                found[int(stat.parent.name)] = stat.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


class Stops:
    """Commands that are left alone, and commands that are stopped again and again."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.folder, self.seed, self.spawned, self.keep = folder, arguments.seed, arguments.spawned, arguments.output
        (folder / "data").mkdir()
        self.commands = Commands(folder / "data")
        self.kinds = arguments.kinds.split(",")
        self.base = folder / "base"  # the run that is adapted
        self._alone(
            ["train", str(folder / "data" / "one.toml"), "--run", str(self.base), "train.steps=40"], folder / "b"
        )
        self.seconds: dict[str, float] = {}
        self.expected: dict[str, Any] = {}
        for kind in dict.fromkeys(self.kinds):
            place = folder / f"straight-{kind}"
            run = self._prepare(kind, place)
            started = time.monotonic()
            self._alone(self.commands.of(kind, run), place)
            self.seconds[kind] = time.monotonic() - started
            self.expected[kind] = self._result(kind, place)
            assert not leftovers(place), leftovers(place)
            print(f"{kind}: {self.seconds[kind]:.1f} s when left alone", flush=True)

    def _prepare(self, kind: str, place: Path) -> Path:
        place.mkdir(exist_ok=True)
        if kind == "adapt":
            shutil.copytree(self.base, place / "run")
        return place / "run"

    def _alone(self, words: list[str], place: Path) -> None:
        place.mkdir(exist_ok=True)
        code = ended(begin(words, place), MAX_SECONDS)
        assert code == 0, (words, code, (place / "errors.txt").read_text(encoding="utf-8"))
        for name in (place / "modules.txt").read_text(encoding="utf-8").split():
            with suppress(Exception):  # or every later command would import it anew
                importlib.import_module(name)

    def _result(self, kind: str, place: Path) -> Any:
        """What must not depend on how often a command was stopped."""
        run = place / "run"
        if kind in ("search", "ensemble", "folds"):
            from dragoman.auto.search.state import load_search

            state = load_search(run)
            trials = [(trial.name, trial.scores, trial.final, trial.step, trial.error) for trial in state.ranking()]
            return state.done, state.members, trials, sha256(run / "weights.safetensors")
        if kind == "timed":
            return json.loads((run / "search.json").read_text())["done"], (run / "weights.safetensors").is_file()
        if kind == "adapt":
            versions = json.loads((run / "versions" / "versions.json").read_text())["versions"]
            told = [(entry["number"], entry["digest"], entry["kept"]) for entry in versions]
            return told, sha256(run / "weights.safetensors")
        table = json.loads((place / "output.txt").read_text().splitlines()[-1])
        return timeless(table)

    def __call__(self, number: int, folder: Path) -> Outcome:
        """Stop one command several times, and compare its end with that of one that nothing stopped."""
        draw = random.Random(f"{self.seed}/{number}")
        kind = self.kinds[number % len(self.kinds)]
        spawned = bool(self.spawned) and draw.randrange(self.spawned) == 0
        run, counts, wrong = self._prepare(kind, folder), Counter({f"cases of {kind}": 1}), list[str]()
        words = self.commands.of(kind, run)
        code: int | None = None
        for _ in range(draw.randint(1, STOPS)):
            code, problems = self._life(kind, words, folder, draw, spawned, counts)
            wrong += problems
            if code is not None:
                break
            wrong += self._info(kind, run, folder, counts)
        if code is None:
            counts["resumed to the end"] += 1
            child = begin(words, folder)
            code = ended(child, MAX_SECONDS)
            wrong += self._left(child)
        said = (folder / "errors.txt").read_text(encoding="utf-8")
        if code != 0:
            wrong.append(f"exit code {code}: {said[-600:]}")
        elif left := leftovers(folder):
            wrong.append(f"left {left}")
        elif (result := self._result(kind, folder)) != self.expected[kind]:
            wrong.append(f"the end differs: {str(result)[:500]} is not {str(self.expected[kind])[:500]}")
        if wrong and self.keep is not None:
            shutil.copytree(folder, Path(f"{self.keep}.{self.seed}-{number}"), dirs_exist_ok=True, symlinks=True)
        return Outcome(counts, f"--seed {self.seed}, {kind}: {'; '.join(wrong)}" if wrong else "")

    def _life(
        self, kind: str, words: list[str], folder: Path, draw: random.Random, spawned: bool, counts: Counter[str]
    ) -> tuple[int | None, list[str]]:
        """Start a command and stop it after a while: its exit code, None where it was stopped, and what is wrong."""
        how = draw.choice(("int", "int group", "term", "term group", "kill", "kill worker"))
        number = {"int": signal.SIGINT, "term": signal.SIGTERM, "kill": signal.SIGKILL}[how.split()[0]]
        usual = self.seconds[kind] + (8 if spawned else 0)
        delay = draw.uniform(0, 0.3) if draw.random() < 0.15 else draw.uniform(0, usual)
        child = (spawn if spawned else begin)(words, folder)
        code = ended(child, delay)
        if how == "kill worker":
            if code is None:
                code = self._kill_worker(child, draw, counts)
            left = self._left(child) if code is not None else [f"ran on for {MAX_SECONDS:.0f} s"]
            return -1 if code is None else code, left
        if code is not None:
            return code, self._left(child)
        with suppress(ProcessLookupError):
            (os.killpg if "group" in how else os.kill)(child, number)
        stopped = time.monotonic()
        code = ended(child, MAX_SECONDS)
        took = time.monotonic() - stopped
        wrong = [f"{how}: ended after {took:.1f} s"] if took > WITHIN else []
        counts[f"ended within {next((bound for bound in (1, 3, 6, 10) if took <= bound), 999)} s"] += 1
        wrong += [f"{how}: {problem}" for problem in self._left(child)]
        said = (folder / "errors.txt").read_text(encoding="utf-8")
        if code == 0:  # it had just ended
            return 0, wrong
        allowed = (-signal.SIGKILL,) if number == signal.SIGKILL else (128 + number,)
        if spawned:
            allowed = (*allowed, -number)  # while Python starts
        if code not in allowed or "internal error" in said or ("Traceback" in said and not spawned):
            wrong.append(f"{how}: exit code {code}: {said[-600:]}")
        counts[f"stopped by {how}"] += 1
        counts["stops"] += 1
        return None, wrong

    def _kill_worker(self, child: int, draw: random.Random, counts: Counter[str]) -> int | None:
        """Kill one worker of a search, if it has one soon; the exit code of the command, which goes on."""
        until = time.monotonic() + 5
        while time.monotonic() < until:
            workers = [pid for pid, line in group_of(child).items() if "resource_tracker" not in line]
            if workers:
                with suppress(ProcessLookupError):
                    os.kill(draw.choice(workers), signal.SIGKILL)
                    counts["stopped by kill worker"] += 1
                    counts["stops"] += 1
                break
            if (code := ended(child, 0.01)) is not None:
                return code
        return ended(child, MAX_SECONDS)

    def _left(self, child: int) -> list[str]:
        """The processes of a command that have not ended soon after it."""
        until = time.monotonic() + WITHIN
        while (left := group_of(child)) and time.monotonic() < until:
            time.sleep(0.02)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return [f"left {len(left)} processes: {next(iter(left.values()))[:100]}"] if left else []

    def _info(self, kind: str, run: Path, folder: Path, counts: Counter[str]) -> list[str]:
        """Whether `info` explains the folder, and the command that it prints to use the best trial works."""
        place = folder.with_name(f"{folder.name}-info")
        place.mkdir(exist_ok=True)
        code = ended(begin(["info", str(run)], place), MAX_SECONDS)
        out, err = ((place / name).read_text(encoding="utf-8") for name in ("output.txt", "errors.txt"))
        counts[f"info: exit code {code}"] += 1
        if code == 2 and not run.exists():
            return []
        if code != 0:
            return [] if code == 2 and "command again" in err else [f"info: exit code {code}: {err[-300:]}"]
        if kind in ("search", "ensemble", "folds", "timed") and not (run / "config.toml").exists():
            if "goes on with" not in out:
                return [f"info: {out[-300:]}"]
            if (use := re.search(r"use .*: dragoman (predict \S+) FILE$", out, re.MULTILINE)) is not None:
                counts["best trial used"] += 1
                words = [*use[1].split(), str(self.commands.place / "inputs.txt")]
                code = ended(begin(words, place), MAX_SECONDS)
                lines = (place / "output.txt").read_text(encoding="utf-8").splitlines()
                if code != 0 or len(lines) != 2:
                    return [f"{' '.join(words)}: {code}, {lines}: {(place / 'errors.txt').read_text()[-300:]}"]
        return []


def timeless(value: Any) -> Any:
    """Results without times and folders."""
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items() if not re.search("second|folder|run$|speed|time", key)}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stops", nargs="?", type=int, default=500)
    parser.add_argument("--kinds", default="search,adapt,ensemble,adapt,folds,timed,curve,search,compare,tasks")
    parser.add_argument("--spawned", type=int, default=20, help="one case in so many is a process of its own; 0: none")
    add_options(parser)
    arguments = parser.parse_args()
    with scratch("stops") as folder:
        os.environ["DRAGOMAN_CACHE"] = str(Path(folder) / "cache")
        warm_up(table(Path(folder) / "pairs.tsv"))
        stops = Stops(Path(folder), arguments)
        lanes = Lanes("stops", Path(folder), arguments, (STOPS + 1) * 2 * MAX_SECONDS)
        report = lanes.run(1 << 40, stops, lambda counts: counts["stops"] >= arguments.stops)
    return report.show()


if __name__ == "__main__":
    sys.exit(main())
