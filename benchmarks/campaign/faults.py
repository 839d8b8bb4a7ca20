"""Let each file operation of a training run fail in turn: ENOSPC, EIO, EINTR, a short read or write, or kill -9.

A small C library (LD_PRELOAD) counts open, read, write, fsync, rename and mkdir under the run folder and the cache and
of the data, and lets the n-th fail. The command must end well, or with one line and exit code 2. What it leaves must
load, and the same command without a fault must end with the same bits as a run that was left alone, as a run that ended
well in spite of its fault must.

python benchmarks/campaign/faults.py [COUNT] [--processes P] [--seconds S] [--output FAILURES]
    COUNT cases spread evenly over all; 0: every operation, every fault
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.campaign.lanes import Lanes, Outcome, add_options, scratch
from tests.training.kill_driver import Driver, ended, fork, leftovers, result, unloadable

KILL, SHORT = -2, -1
FAULTS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EINTR": errno.EINTR, "short": SHORT, "kill": KILL}
OVERRIDES = (
    "train.steps=4", "train.save_every=2", "train.validate_every=2", "train.log_every=2", "train.accumulate=1",
    "train.decode=2", "train.optimizer.warmup=2", "data.holdout=10",
)  # fmt: skip
# Operations, and the letter of each in the log of the library.
LETTERS = {
    "open": "o", "read": "r", "pread": "p", "write": "w", "fsync": "f", "mkdir": "m", "rename": "n",
}  # fmt: skip
MAX_SECONDS = 120
PAIRS = 40  # of the corpus: every row is read at least once


def build_library(folder: Path) -> Path:
    """Compile the C library."""
    library = folder / "faults.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=300)
    parser.add_argument("--faults", default=",".join(FAULTS), help="only these, such as kill,ENOSPC")
    parser.add_argument("--operations", default=",".join(LETTERS), help="only in these, such as write,rename,fsync")
    parser.add_argument("--first", type=int, default=0, help="leave out so many cases, which another run has had")
    add_options(parser)
    arguments = parser.parse_args()
    if "DRAGOMAN_FAULTS" not in os.environ:  # start anew with the library loaded
        with tempfile.TemporaryDirectory(prefix="dragoman-faults-") as folder:
            library = str(build_library(Path(folder)))
            environment = os.environ | {"LD_PRELOAD": library, "DRAGOMAN_FAULTS": library, "OMP_NUM_THREADS": "1"}
            return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode
    with scratch("faults") as folder:
        faults = Faults(Path(folder).resolve(), arguments)
        print(f"faults: {faults.operations:,} operations, {len(faults.cases):,} cases", flush=True)
        report = Lanes("faults", Path(folder).resolve(), arguments, 3 * MAX_SECONDS).run(len(faults.cases), faults)
    return report.show()


class Faults:
    """Runs with one fault each."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        """Spread the cases evenly over operations and faults."""
        self.library = ctypes.CDLL(os.environ["DRAGOMAN_FAULTS"])
        self.driver = Driver(folder, pairs=PAIRS)
        straight = folder / "straight"
        straight.mkdir()
        code, said, counted = self.run(straight)
        assert code == 0, said
        self.operations, letters = int(counted.split()[0]), counted.split()[1]
        self.expected = result(straight / "run")
        wanted = {LETTERS[name] for name in arguments.operations.split(",")}
        cases = [
            (at, name)
            for at, letter in enumerate(letters, 1)
            for name in arguments.faults.split(",")
            if letter in wanted and (name != "short" or letter in "rpw")
        ]
        random.Random(arguments.seed).shuffle(cases)
        seen: Counter[str] = Counter()
        ranked = []
        for at, name in cases:  # as many of each operation: most are reads of single rows
            seen[letters[at - 1] + name] += 1
            ranked.append((seen[letters[at - 1] + name], at, name))
        last = arguments.first + arguments.count if arguments.count else len(cases)
        self.cases = [(at, name) for _, at, name in sorted(ranked)[arguments.first : last]]

    def run(self, folder: Path, at: int = 0, fault: int = 0) -> tuple[int | None, str, str]:
        """Train with a fault: the exit code, what the command said, and the counts of the library."""

        shutil.copy(self.driver.folder / "pairs.tsv", folder)

        def work() -> int:
            os.environ["DRAGOMAN_CACHE"] = str(folder / "cache")
            arguments = ["train", str(self.driver.configs["best"]), "--quiet", "--run", str(folder / "run"), *OVERRIDES]
            arguments.append(f"data.train={folder / 'pairs.tsv'}")
            self.library.fault_start(f"{folder}/".encode(), ctypes.c_long(at), fault)
            code = self.driver.guarded(arguments)
            count = ctypes.c_long.in_dll(self.library, "fault_count").value
            name = (ctypes.c_char * 64).in_dll(self.library, "fault_name").value.decode()
            self.library.fault_start(b"", ctypes.c_long(0), 0)
            log = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(self.library, "fault_log")) + 1, count)
            Path(f"{folder}.counts").write_text(f"{count} {log.decode()} {name}")
            return code

        errors = Path(f"{folder}.errors")
        code = ended(fork(work, errors), MAX_SECONDS)
        counts = Path(f"{folder}.counts")
        said = counts.read_text() if counts.exists() else ""
        counts.unlink(missing_ok=True)
        return code, errors.read_text(encoding="utf-8"), said

    def __call__(self, number: int, folder: Path) -> Outcome:
        at, name = self.cases[number]
        code, said, counted = self.run(folder, at, FAULTS[name])
        operation = (counted.split() + ["?", "?", "?"])[2]
        outcome = {0: "ended well", 2: "refused", -9: "killed"}.get(code, "FAILED")  # type: ignore[call-overload]
        counts = Counter({f"{name} {operation if name != 'kill' else ''} {outcome}": 1})
        wrong = self.problem(folder, name, operation, code, said)
        return Outcome(counts, f"operation {at}, {name}, {operation}: {wrong}" if wrong else "")

    def problem(self, folder: Path, name: str, operation: str, code: int | None, said: str) -> str:
        """What is wrong after one fault; empty if nothing is."""
        if code not in (0, 2, -9) or "Traceback" in said or (code == 2 and len(said.splitlines()) > 3):
            return f"exit code {code}: {said[-300:]}"
        if name in ("EINTR", "short") and code != 0 and operation in ("read", "pread", "write", "open"):
            return f"not tolerated, exit code {code}: {said[-300:]}"
        if (folder / "run").exists() and (wrong := unloadable(folder / "run")):
            return f"left a state that cannot be loaded: {wrong}"
        if code != 0:
            code, said, _ = self.run(folder)
        if code != 0:
            return f"the next run ended with {code}: {said[-300:]}"
        if result(folder / "run") != self.expected:
            return "ended with other bits"
        if left := leftovers(folder):
            return f"left {left}"
        return ""


if __name__ == "__main__":
    sys.exit(main())
