"""Read a TMX of N units as training data and watch resident memory: it must stay flat.

    python benchmarks/tmx_memory.py [N]

Writes benchmarks/results/tmx_memory.json.
"""

from __future__ import annotations

import json
import os
import platform
import random
import sys
import tempfile
import time
from pathlib import Path

from flat_memory import ROOT, resident

GROWTH = 5e6  # bytes that memory may grow by after the first tenth of the units


def write_tmx(path: Path, units: int) -> None:
    """A memory of made-up sentences with some inline codes and properties."""
    draw = random.Random(1)
    words = [f"word{number}" for number in range(5000)]
    with path.open("w", encoding="utf-8") as file:
        file.write('<?xml version="1.0"?>\n<tmx version="1.4"><header srclang="en"/><body>\n')
        for number in range(units):
            left, right = (" ".join(draw.choices(words, k=draw.randint(3, 25))) for _ in range(2))
            file.write(
                f'<tu tuid="{number}"><prop type="x-domain">a</prop><tuv xml:lang="en"><seg>{number} {left} '
                f'<bpt i="1">&lt;b&gt;</bpt>x<ept i="1">&lt;/b&gt;</ept></seg></tuv><tuv xml:lang="de"><seg>{number} '
                f"{right}</seg></tuv></tu>\n"
            )
        file.write("</body></tmx>\n")


def main() -> None:
    units = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    sys.path.insert(0, str(ROOT))
    from dragoman.data.examples import Example
    from dragoman.data.readers.pairs import read_pairs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.tmx"
        write_tmx(path, units)
        size = path.stat().st_size
        started = time.process_time()
        sizes: list[int] = []
        count = 0
        for number, item in enumerate(read_pairs(path)):
            assert isinstance(item, Example), item
            assert item.source.startswith(f"{number} ")
            assert item.references[0].startswith(f"{number} ")
            count += 1
            if number % 1000 == 0:
                sizes.append(resident(os.getpid()))
        seconds = time.process_time() - started
    early, late = max(sizes[: len(sizes) // 10]), max(sizes)
    result = {
        "units": count, "megabytes": round(size / 1e6, 1), "cpu_seconds": round(seconds, 1),
        "units_per_second": round(count / seconds), "first_tenth_mb": round(early / 1e6, 1),
        "all_mb": round(late / 1e6, 1), "growth_mb": round((late - early) / 1e6, 2), "machine": platform.platform(),
        "ok": count == units and late - early <= GROWTH,
    }  # fmt: skip
    (ROOT / "benchmarks" / "results" / "tmx_memory.json").write_text(
        json.dumps(result, indent=1) + "\n", encoding="utf-8"
    )
    print(json.dumps(result, indent=1))
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
