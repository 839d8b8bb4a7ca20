"""Run every hostile command of tests/hostile.py and count those that do not end as expected.

    python benchmarks/hostile_commands.py

prints one line for each unexpected outcome and a summary; the exit code is 1 if there is one.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.conftest import QUICK, SMALL, call, quiet_machine, words, write_rows
from tests.hostile import Case, cases, damaged_cases, prepare

SECONDS = 60  # for one command


class TookTooLong(BaseException):
    """Not an Exception, which a command would turn into its own error message."""


def problem_of(case: Case) -> str:
    """What is unexpected about the outcome of a case; empty if nothing is."""

    def late(number: int, frame: object) -> None:
        raise TookTooLong(f"more than {SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        result = call(*case.arguments, stdin=case.stdin)
    except BaseException as error:
        return f"raised {type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    if result.code not in case.codes:
        return f"exit code {result.code}, expected {sorted(case.codes)}: {result.err.strip()[-200:]}"
    if "internal error" in result.err or "Traceback" in result.err:
        return result.err.strip()[-300:]
    if result.code == 2 and not result.err.strip():
        return "no explanation"
    if result.code == 0 and case.answers is not None and len(result.lines) != case.answers:
        return f"{len(result.lines)} lines, expected {case.answers}"
    return ""


def main() -> int:
    """Run all cases in a temporary folder."""
    started, count, wrong = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="dragoman-hostile-") as name:
        folder = Path(name)
        write_rows(folder / "pairs.tsv", [(word, word.upper()) for word in words(300)])
        with quiet_machine(folder / "cache"), contextlib.chdir(folder):
            assert call("train", "pairs.tsv", *SMALL, *QUICK, "--run", "run").code == 0
            prepare(folder)
            before = {path: path.read_bytes() for path in folder.glob("*.tsv") if path.is_file()}
            for case in chain(cases("run"), damaged_cases(folder / "run", folder / "copy")):
                count += 1
                if problem := problem_of(case):
                    wrong += 1
                    print(f"{case.name}: {problem}", flush=True)
                for path, content in before.items():
                    if path.read_bytes() != content:
                        wrong += 1
                        print(f"{case.name}: changed {path.name}", flush=True)
                        path.write_bytes(content)
    print(f"{count} hostile commands, {wrong} unexpected outcomes, {time.monotonic() - started:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
