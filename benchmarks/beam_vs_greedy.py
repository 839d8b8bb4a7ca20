"""Beam widths and stop rules against greedy search, for any run and any file of pairs.

    python benchmarks/beam_vs_greedy.py RUN TEST.tsv [--beams 1 2 5 10] [--stop ahead complete] [--sentences 200]
    python benchmarks/beam_vs_greedy.py --commands FOLDER

For every stop rule and beam: metrics, the number of outputs that the search's own score ranks below the greedy one
(none by the default rule), how many outputs are shorter than the greedy one, the mean score, and the time. The second
form writes train.tsv, dev.tsv and test.tsv in which commands of 13 words become up to 48 actions of 6 kinds (the
grammar of SCAN, Lake and Baroni 2018): long outputs over a tiny vocabulary, where a beam that stops too early shows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dragoman.data.readers.pairs import read_pairs
from dragoman.inference.load import load_predictor
from dragoman.scoring.report import score_table

ACTIONS = {"walk": "I_WALK", "look": "I_LOOK", "run": "I_RUN", "jump": "I_JUMP"}
TURNS = {"left": "I_TURN_LEFT", "right": "I_TURN_RIGHT"}
Pairs = list[tuple[str, list[str]]]


def verbs() -> Iterator[tuple[str, list[str]]]:
    """Commands of one verb, with what they mean."""
    for verb, action in ACTIONS.items():
        yield verb, [action]
        for side, turn in TURNS.items():
            yield f"{verb} {side}", [turn, action]
            yield f"{verb} opposite {side}", [turn, turn, action]
            yield f"{verb} around {side}", [turn, action] * 4
    for side, turn in TURNS.items():
        for middle, times in (("", 1), (" opposite", 2), (" around", 4)):
            yield f"turn{middle} {side}", [turn] * times


def commands() -> Pairs:
    """All 20,910 commands."""
    simple = [
        (text + how, actions * times)
        for text, actions in verbs()
        for how, times in (("", 1), (" twice", 2), (" thrice", 3))
    ]
    pairs = list(simple)
    for (first, one), (second, other) in itertools.product(simple, repeat=2):
        pairs += [(f"{first} and {second}", one + other), (f"{first} after {second}", other + one)]
    return pairs


def write_commands(folder: Path) -> None:
    """A random split: 15,000 to train, 500 to validate, 1,000 to test."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = commands()
    random.Random(1).shuffle(pairs)
    for name, rows in (("train", pairs[:15_000]), ("dev", pairs[15_000:15_500]), ("test", pairs[16_000:17_000])):
        text = "".join(f"{source}\t{' '.join(actions)}\n" for source, actions in rows)
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per stop rule and beam."""
    predictor = load_predictor(arguments.run, arguments.device)
    examples = list(itertools.islice(read_pairs(arguments.test), arguments.sentences))
    sources, references = [one.source for one in examples], [list(one.references) for one in examples]
    rows: list[dict[str, Any]] = []
    greedy: list[Any] = []
    jobs = [("greedy", 1), *((stop, beam) for stop in arguments.stop for beam in arguments.beams if beam > 1)]
    for stop, beam in jobs:
        options = {"beam": beam, "engine": arguments.engine, **({} if beam == 1 else {"stop": stop})}
        before = time.perf_counter(), time.process_time()
        outputs = predictor.predict(sources, **options)
        wall, cpu = time.perf_counter() - before[0], time.process_time() - before[1]
        greedy = greedy or outputs
        scores = score_table([one.text for one in outputs], references, arguments.metrics)
        rows.append(
            {
                "stop": stop,
                "beam": beam,
                **{name: round(float(scores[name]), 4) for name in arguments.metrics},
                "ranked below greedy": sum(
                    one.score < other.score - 1e-4 for one, other in zip(outputs, greedy, strict=True)
                ),
                "shorter": sum(len(one.tokens) < len(other.tokens) for one, other in zip(outputs, greedy, strict=True)),
                "mean score": round(sum(one.score for one in outputs) / len(outputs), 4),
                "seconds": round(wall, 2),
                "cpu seconds": round(cpu, 2),
            }
        )
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    return rows


def main() -> None:
    """Write the commands, or measure a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?")
    parser.add_argument("test", nargs="?")
    parser.add_argument("--commands", type=Path, metavar="FOLDER")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 2, 5, 10])
    parser.add_argument("--stop", nargs="+", default=["ahead", "complete"])
    parser.add_argument("--metrics", nargs="+", default=["exact_match", "bleu", "chrf", "wer"])
    parser.add_argument("--sentences", type=int, default=None)
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    arguments = parser.parse_args()
    if arguments.commands:
        write_commands(arguments.commands)
        return
    if not arguments.test:
        parser.error("expected RUN and TEST, or --commands FOLDER")
    rows = measure(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
