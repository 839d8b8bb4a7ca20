"""BLEU of faster decoding on a CPU: int8 and shortlists against float32 over the whole vocabulary.

    python benchmarks/decoding_quality.py RUN --source a.en.gz b.en.gz --target a.de.gz b.de.gz

Each configuration translates the same sentences as `dragoman predict` does. BLEU is sacreBLEU's, per test set and as
their mean: a change of rounding moves the score of one set by a few tenths in either direction. A shortlist is
made with `dragoman shortlist` if the run has none. Writes benchmarks/results/decoding_quality.json and a table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import sacrebleu
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dragoman.data.readers.lines import read_lines  # noqa: E402
from dragoman.decoding.shortlist import NAME, ShortlistFile  # noqa: E402
from dragoman.inference.load import load_predictor  # noqa: E402
from dragoman.inspect.measure.shortlists import build_shortlist  # noqa: E402

BAR = 0.2  # BLEU that int8 may cost
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
WAYS = {  # engine, precision, with a shortlist
    "torch float32": ("torch", "float32", False),
    "torch float32, shortlist": ("torch", "float32", True),
    "ctranslate2 float32": ("ctranslate2", "float32", False),
    "ctranslate2 float32, shortlist": ("ctranslate2", "float32", True),
    "ctranslate2 int8": ("ctranslate2", "int8", False),
    "ctranslate2 int8, shortlist": ("ctranslate2", "int8", True),
}


def commit() -> str:
    """What was measured; + says that files were changed since."""

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every way with every beam, in turn."""
    sets = [
        [list(itertools.islice(read_lines(path), arguments.sentences)) for path in paths]
        for paths in zip(arguments.source, arguments.target, strict=True)
    ]
    sources = [line for source, _ in sets for line in source]
    clock = CLOCKS[arguments.clock]
    opened = {
        name: load_predictor(arguments.run, "cpu", engine=engine, precision=precision, scores=False)
        for name, (engine, precision, _) in WAYS.items()
        if not arguments.only or arguments.only in name
    }
    one = next(iter(opened.values()))
    if not (one.run.folder / NAME).exists():
        made, _ = build_shortlist(one.run, 50, 500, 100_000)
        made.save(one.run.folder / NAME, one.source_tokenizer, one.target_tokenizer)
    lists = {name: ShortlistFile() for name in opened if WAYS[name][2]}
    found: dict[str, dict[str, Any]] = {}
    for beam in arguments.beams:
        times: dict[str, list[float]] = {name: [] for name in opened}
        texts: dict[str, list[str]] = {}
        for number in range(arguments.rounds + 1):  # the first one warms up
            for name, run in opened.items():
                begin = clock()
                few = sources if number else sources[:64]
                outputs = run.predict(few, beam=beam, method=lists.get(name))
                if number:
                    times[name].append(len(few) / (clock() - begin))
                    texts[name] = [output.text for output in outputs]
                    print(f"{name}, beam {beam}: {times[name][-1]:.1f} sentences/s", file=sys.stderr)
        for name, written in texts.items():
            first = next(iter(texts))
            left, scores = iter(written), []
            for source, references in sets:
                outputs = list(itertools.islice(left, len(source)))
                scores.append(sacrebleu.corpus_bleu(outputs, [references]).score)
            found[f"{name}, beam {beam}"] = {
                "bleu": statistics.mean(scores),
                "of_each_set": scores,
                "sentences_per_second": statistics.median(times[name]),
                "spread": [min(times[name]), max(times[name])],
                "same_text": sum(map(str.__eq__, written, texts[first])) / len(written),
            }
    return {
        "commit": commit(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "versions": {"torch": torch.__version__, "python": platform.python_version(), **ctranslate2_version()},
        "settings": {
            "run": Path(arguments.run).name,
            "sets": [Path(path).name for path in arguments.source],
            "sentences": len(sources),
            "vocabulary": len(one.target_tokenizer),
            "rounds": arguments.rounds,
            "clock": arguments.clock,
        },
        "ways": found,
    }


def ctranslate2_version() -> dict[str, str]:
    """Of the engine."""
    import ctranslate2

    return {"ctranslate2": ctranslate2.__version__}


def table(facts: dict[str, Any]) -> str:
    """The same for people."""
    told = facts["settings"]
    lines = [
        f"{facts['machine']}, {facts['threads']} threads, {told['run']}, {told['sentences']:,} sentences, vocabulary "
        f"{told['vocabulary']:,}, {'CPU time' if told['clock'] == 'cpu' else 'wall time'}, median of {told['rounds']}, "
        f"load {facts['load']:.1f}",
        "",
        "| way | BLEU | of each set | sentences/s | same text as the first |",
        "|---|---|---|---|---|",
    ]
    for name, one in facts["ways"].items():
        each = ", ".join(f"{score:.2f}" for score in one["of_each_set"])
        speed, same = one["sentences_per_second"], one["same_text"]
        lines.append(f"| {name} | {one['bleu']:.2f} | {each} | {speed:.1f} | {same:.1%} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a trained Transformer")
    parser.add_argument("--source", required=True, nargs="+", help="one file a test set")
    parser.add_argument("--target", required=True, nargs="+")
    parser.add_argument("--sentences", type=int, default=1000, help="at most so many of each")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="only ways with this in their name")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: on a machine with other work")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "decoding_quality.json")
    arguments = parser.parse_args()
    facts = measure(arguments)
    text = table(facts)
    print(text)
    arguments.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    arguments.output.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    ways = facts["ways"]
    lost = [
        ways[name.replace("int8", "float32")]["bleu"] - one["bleu"]
        for name, one in ways.items()
        if "int8" in name and "shortlist" not in name and name.replace("int8", "float32") in ways
    ]
    return 0 if all(abs(one) <= BAR for one in lost) else 1


if __name__ == "__main__":
    sys.exit(main())
