"""Run numbered cases in several processes that are forked from one with everything imported.

A lane is a process that works through every n-th number. One that dies or hangs is replaced, and its case is repeated
in a process of its own. So the cases of a campaign may crash, and starting one costs no import.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import re
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SLOT = struct.Struct("<qqd")  # of a lane: the number of its case, how often it was begun, when
PROGRESS = 10.0  # seconds between two lines


@dataclass
class Outcome:
    """What came of one case: what to count, and what is wrong, if something is."""

    counts: Counter[str] = field(default_factory=Counter)
    failure: str = ""
    renew: bool = False  # go on in a new process


# The case of a number, in a folder that only its lane uses.
Case = Callable[[int, Path], Outcome]


@dataclass
class Report:
    """What came of all cases."""

    name: str
    cases: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def line(self) -> str:
        kills = f"{self.counts['kills']:,} kills in " if "kills" in self.counts else ""
        return f"{self.name}: {kills}{self.cases:,} cases, {len(self.failures)} failures, {self.seconds:.0f} s"

    def show(self) -> int:
        """Print the summary; gives the exit code."""
        print(self.line())
        for what, count in sorted(self.counts.items()):
            print(f"  {what:<40}{count:>10,}")
        kinds: dict[str, list[str]] = {}
        for line in self.failures:
            kinds.setdefault(kind_of_failure(line), []).append(line)
        for lines in kinds.values():
            print(f"{len(lines)} like {lines[0]}")
        return 1 if self.failures else 0


def kind_of_failure(line: str) -> str:
    """The same text for failures of the same kind: where they are, or their words without numbers."""
    return line.rpartition(" at ")[2] if " at " in line else re.sub(r"\d+", "", line)[:120]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that all campaigns share."""
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1, help="cases that run at the same time")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no case after so many seconds; 0: no limit")
    parser.add_argument("--output", type=Path, help="append failures to this file as they are found")


def scratch(name: str) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder, in memory where there is room."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2 << 30
    return tempfile.TemporaryDirectory(prefix=f"dragoman-{name}-", dir=memory if roomy else None)


def die_with_parent() -> None:
    """Let the kernel end this process when its parent ends (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Lanes:
    """The processes of one campaign."""

    def __init__(self, name: str, folder: Path, arguments: argparse.Namespace, max_seconds: float) -> None:
        """A case that takes more than `max_seconds` hangs."""
        self.report, self.folder, self.arguments, self.max_seconds = Report(name), folder, arguments, max_seconds
        self.processes = max(1, arguments.processes)
        self.slots = mmap.mmap(-1, SLOT.size * self.processes + 1)  # the last byte tells lanes to stop
        self.children: dict[int, int] = {}
        self.read = [0] * self.processes  # bytes of each lane's log
        self.kinds: Counter[str] = Counter()  # of failures
        self.why: dict[int, str] = {}  # how cases ended the process of their lane

    def run(self, count: int, case: Case, enough: Callable[[Counter[str]], bool] = lambda counts: False) -> Report:
        """Run the cases 0 … count - 1 until there are enough of them or the time is over."""
        started = shown = time.monotonic()
        limit = self.arguments.seconds or float("inf")
        signal.signal(signal.SIGTERM, lambda *given: self.slots.__setitem__(-1, 1))  # end after the running cases
        for lane in range(self.processes):
            self._set(lane, lane, 0)
            self._start(lane, count, case)
        try:
            while self.children:
                time.sleep(0.05)
                self._collect()
                now = time.monotonic()
                self.report.seconds = now - started
                if self.report.seconds > limit or enough(self.report.counts):
                    self.slots[-1] = 1
                for lane in list(self.children):
                    self._watch(lane, count, case)
                if now - shown > PROGRESS:
                    shown = now
                    print(self.report.line(), flush=True)
        finally:
            for lane in list(self.children):
                self._kill(lane)
        self._collect()
        return self.report

    def _get(self, lane: int) -> tuple[int, int, float]:
        number, attempt, begun = SLOT.unpack_from(self.slots, SLOT.size * lane)
        return number, attempt, begun

    def _set(self, lane: int, number: int, attempt: int) -> None:
        SLOT.pack_into(self.slots, SLOT.size * lane, number, attempt, time.monotonic())

    def _log(self, lane: int, number: int, outcome: Outcome) -> None:
        with (self.folder / f"lane{lane}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([number, outcome.counts, outcome.failure]) + "\n")

    def _start(self, lane: int, count: int, case: Case) -> None:
        """Fork the process of a lane, which goes on with the case of its slot."""
        sys.stdout.flush()
        if child := os.fork():
            self.children[lane] = child
            return
        code = 70
        try:
            os.setpgid(0, 0)
            die_with_parent()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._work(lane, count, case)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _work(self, lane: int, count: int, case: Case) -> None:
        folder = self.folder / f"lane{lane}"
        with (self.folder / f"lane{lane}.jsonl").open("a", encoding="utf-8") as log:
            while True:
                number, attempt, _ = self._get(lane)
                if number >= count or (self.slots[-1] and not attempt):
                    return
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                self._set(lane, number, attempt + 1)
                outcome = case(number, folder)
                if attempt:
                    outcome.failure = f"and alone: {outcome.failure or dict(outcome.counts)}"
                log.write(json.dumps([number, outcome.counts, outcome.failure]) + "\n")
                log.flush()
                self._set(lane, number + self.processes, 0)
                if attempt or outcome.renew:
                    return

    def _watch(self, lane: int, count: int, case: Case) -> None:
        """Replace the process of a lane if it has ended or hangs; a case that kills it twice has failed."""
        found, status = os.waitpid(self.children[lane], os.WNOHANG)
        number, attempt, begun = self._get(lane)
        why = ""
        if found:
            del self.children[lane]
            code = os.waitstatus_to_exitcode(status)
            why = f"the process ended with {code}" if code else ""
        elif attempt and time.monotonic() - begun > self.max_seconds:
            self._kill(lane)
            why = f"hangs: killed after {self.max_seconds:.0f} s"
        else:
            return
        if why and attempt == 1:
            self.why[number] = why
        elif why:
            self._log(lane, number, Outcome(failure=f"and alone: {why}"))
            self._set(lane, number + self.processes, 0)
        if self._get(lane)[0] < count and not (self.slots[-1] and not self._get(lane)[1]):
            self._start(lane, count, case)

    def _kill(self, lane: int) -> None:
        child = self.children.pop(lane)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)

    def _collect(self) -> None:
        """Read what the lanes have logged since the last time."""
        for lane in range(self.processes):
            path = self.folder / f"lane{lane}.jsonl"
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self.read[lane])
                lines = file.read().split(b"\n")[:-1]
            self.read[lane] += sum(len(line) + 1 for line in lines)
            for line in lines:
                number, counts, failure = json.loads(line)
                self.report.cases += 1
                self.report.counts.update(counts)
                if failure:
                    before = f"{self.why[number]} among others, " if number in self.why else ""
                    self._fail(f"case {number}: {before}{failure}")

    def _fail(self, line: str) -> None:
        self.report.failures.append(line)
        self.kinds[kind_of_failure(line)] += 1
        if self.kinds[kind_of_failure(line)] <= 2:
            print(f"FAILURE {line[:600]}", flush=True)
        if self.arguments.output is not None:
            with self.arguments.output.open("a", encoding="utf-8") as file:
                file.write(f"{self.report.name} {line}\n")
