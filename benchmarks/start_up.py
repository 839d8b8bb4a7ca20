"""Start-up of commands, beside another checkout and beside the imports that cost most.

    python benchmarks/start_up.py RUN [--other CHECKOUT] [--rounds 5]

RUN is a Transformer whose CTranslate2 folder is written (`predict RUN --beam 1` writes it). Commands and checkouts take
turns. The table shows medians of wall time and of processor time, which other work on the machine changes less, and
the processor time of the other checkout as a multiple of this one's.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent.parent
LINE = "A man is riding a bike.\n"


def commands(run: str) -> dict[str, list[str]]:
    dragoman = ["-m", "dragoman"]
    helps = {f"{name} --help": [*dragoman, name, "--help"] for name in ("predict", "complete", "evaluate", "translate")}
    return {
        "import ctranslate2": ["-c", "import ctranslate2"],
        "import torch": ["-c", "import torch"],
        **helps,
        "predict, greedy": [*dragoman, "predict", run, "--beam", "1", "--device", "cpu"],
        "predict, default beam": [*dragoman, "predict", run, "--device", "cpu"],
        "serve until it is ready": [*dragoman, "serve", run, "search.beam=1", "--device", "cpu", "--port", "0"],
    }


def measure(arguments: list[str], checkout: Path, folder: str) -> tuple[float, float]:
    """Wall and processor seconds of a command; of a server, until it says that it is ready."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(checkout)}  # Python takes a package in the working folder first
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(LINE)
    process.stdin.close()
    serves, said = "serve" in arguments, []
    for text in process.stdout:
        said.append(text)
        if serves and "serving on" in text:
            break
    seconds = time.perf_counter() - begun
    if serves:
        process.terminate()
    code = process.wait(60)
    if code and not serves:
        raise SystemExit("".join(said))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    checkouts = [HERE, *([given.other.resolve()] if given.other else [])]
    for checkout in checkouts:  # every later start reads compiled files
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(checkout / "dragoman")], check=True)
    taken: dict[tuple[str, Path], list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.rounds):
            for name, arguments in commands(str(given.run.resolve())).items():
                for checkout in checkouts if "-m" in arguments else checkouts[:1]:
                    taken[name, checkout].append(measure(arguments, checkout, folder))
    for name in commands(""):
        wall, cpu = (statistics.median(part) for part in zip(*taken[name, HERE], strict=True))
        line = f"{name:<24} {wall:6.2f} s, {cpu:6.2f} s of processor time"
        if given.other and (others := taken[name, checkouts[1]]):
            line += (
                f"; the other checkout {statistics.median(seconds for _, seconds in others) / cpu:.2f} times as much"
            )
        print(line, flush=True)


if __name__ == "__main__":
    main()
