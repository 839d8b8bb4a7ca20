"""Kill training runs of all text tasks N times at random moments: every state must load, the end must be the same.

python benchmarks/campaign/kills.py [N] [--seed SEED]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.training.kill_driver import TASKS, Driver


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", nargs="?", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dragoman-kills-") as folder:
        done = Driver(Path(folder), tuple(TASKS)).campaign(arguments.kills, arguments.seed)
    print(done.line())
    for line in (*done.unloadable, *done.differing):
        print(line)
    return 0 if done.good else 1


if __name__ == "__main__":
    sys.exit(main())
