"""Ensembles through every command: all members compute alike, or the command refuses and names a member.

A round trains an ensemble of three members with encoders and decoders of its own and runs every command of
tests/inference/test_ensemble_commands.py on it. Search scores are compared with the scores of the same texts when they
are given.

python benchmarks/campaign/ensembles.py [ROUNDS]
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pytest

from dragoman.inference.load import load_predictor
from dragoman.runs.folder import write_members
from dragoman.serving.config import ModelConfig, ServeConfig
from dragoman.serving.models import BatchWork, ServedModel
from tests.conftest import call, quiet_machine, words, write_rows
from tests.inference.test_ensemble_commands import REFUSES, TEXTS, WHOLE, Calls, Place

PARTS = {
    "transformer": ("layers=1", "width=32", "heads=2", "feedforward=64"),
    "recurrent": ("layers=1", "width=32", "embedding=16"),
}
KINDS = (("transformer", "transformer"), ("recurrent", "recurrent"), ("recurrent", "transformer"))
QUICK = (
    "train.steps=60", "train.validate_every=60", "train.decode=5", "train.device=cpu", "train.average.kind=none",
    "train.optimizer.learning_rate=1e-2", "train.optimizer.warmup=9",
)  # fmt: skip


def build(folder: Path, number: int) -> Place:
    """An ensemble whose members have different architectures."""
    some = words(600, seed=number, longest=4)
    rows = [(" ".join(some[i : i + 3]), " ".join(some[i : i + 3]).upper()) for i in range(0, 600, 3)]
    write_rows(folder / "pairs.tsv", rows)
    write_rows(folder / "test.tsv", rows[:24])
    write_rows(folder / "back.tsv", [(target, source) for source, target in rows])
    (folder / "in.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    (folder / "in.md").write_text("abc *def* hid\n", encoding="utf-8")
    for name, data in (("three", "pairs.tsv"), ("back", "back.tsv")):
        run = folder / name
        for seed, path in enumerate((run, run / "trials" / "second", run / "trials" / "third")):
            sides = zip(("encoder", "decoder"), KINDS[(number + seed) % len(KINDS)], strict=True)
            settings = [
                one
                for side, kind in sides
                for one in (f"model.{side}.kind={kind}", *(f"model.{side}.{setting}" for setting in PARTS[kind]))
            ]
            result = call("train", folder / data, "--run", path, *settings, *QUICK, f"train.seed={seed}")
            assert result.code == 0, result.err
        write_members(run, ["trials/second", "trials/third"])
    return Place(folder)


def failures(place: Place) -> list[str]:
    """What went wrong, by command."""
    found = []
    for name, run in (*WHOLE.items(), *REFUSES.items()):
        with pytest.MonkeyPatch.context() as patch:
            calls, result = Calls(patch), run(place)
        if name in WHOLE and (result.code or not calls.equal()):
            found.append(f"{name}: code {result.code}, {dict(calls.counts)} {result.err}")
        if name in REFUSES and (result.code != 2 or calls.counts or "found an ensemble of 3 models" not in result.err):
            found.append(f"{name}: code {result.code} {result.err}")
    served = ServedModel(ModelConfig(str(place.run)), ServeConfig(device="cpu"))
    for text, prediction in zip(TEXTS, load_predictor(place.run, "cpu").predict(TEXTS, beam=3), strict=True):
        (scored,) = served.run(BatchWork("", "score"), [(text, prediction.text)])
        gap = max(abs(a - b) for a, b in zip(scored.token_scores, prediction.token_scores, strict=True))
        if gap > 1e-4:
            found.append(f"score of {text!r}: {gap} off")
    return found


def main() -> None:
    """Print the number of commands, failures and seconds; exit code 1 if there is a failure."""
    rounds, started, wrong = int(sys.argv[1]) if len(sys.argv) > 1 else 3, time.monotonic(), list[str]()
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as name, quiet_machine(Path(name) / "cache"), contextlib.chdir(name):
            wrong += failures(build(Path(name), number))
    for line in wrong:
        print(line)
    count = rounds * (len(WHOLE) + len(REFUSES) + len(TEXTS))
    print(f"ensembles: {count:,} commands and scores, {len(wrong)} failures, {time.monotonic() - started:.0f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
