"""A simulated translator: 500 of 2,000 captions are corrected, and the run that learns from them translates the others.

    python benchmarks/simulated_translator.py --data PATH_TO_DATA [--run FOLDER] [--mix 1] [--develop] [PLACE=VALUE ...]

A small model learns from short sentences of Tatoeba (English–German). A translator has 2,000 captions of Multi30k to
do, corrects 500 of them (here: replaces them by their references) and gives them to `adapt`. Both versions then
translate the other 1,500 captions and general text that neither training nor `adapt` has seen: the test part of
Tatoeba. `--develop` takes the development parts of both instead, by which settings are chosen. `--run` keeps the model
for another call. Further arguments are settings of `adapt`.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import tempfile
import time
from pathlib import Path

import dragoman
from dragoman.auto.adaptation import Adaptation
from dragoman.auto.demonstration import hashed

Pairs = list[tuple[str, str]]
LONGEST = 71  # characters of a sentence of Tatoeba
GENERAL, CAPTIONS, CORRECTED, JUDGED = 15_000, 2_000, 500, 1_000
SIZES = ("kind=transformer", "layers=1", "width=96", "heads=4", "feedforward=192", "dropout=0.2")
MODEL = [
    "data.holdout=500", "tokenizer.source.kind=subwords", "tokenizer.source.vocab_size=1500",
    "model.label_smoothing=0.1", "model.tie=target",
    *(f"model.{side}.{size}" for side in ("encoder", "decoder") for size in SIZES),
    "train.steps=3000", "train.batch_tokens=2048", "train.validate_every=300", "train.save_every=300",
    "train.metric=chrf", "train.decode=200", "train.optimizer.learning_rate=3e-3", "train.optimizer.warmup=300",
    "train.optimizer.schedule=inverse-sqrt", "train.average.kind=ema", "train.average.decay=0.999",
]  # fmt: skip


def read_tatoeba(data: Path, part: str) -> Pairs:
    """Short pairs of a part, in an order that depends on nothing else."""
    with gzip.open(data / f"tatoeba_pairs/{part}.eng-deu.tsv.gz", "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    pairs = [(row[0], row[1]) for row in rows if len(row[0]) <= LONGEST]
    return sorted(dict(pairs).items(), key=lambda pair: hashed(pair[0]))


def read_captions(data: Path, part: str) -> Pairs:
    """The pairs of a part of Multi30k in such an order."""
    sides = []
    for language in ("en", "de"):
        with gzip.open(data / f"multi30k/{part}.{language}.gz", "rt", encoding="utf-8", newline="\n") as file:
            sides.append([" ".join(line.split()) for line in file.read().splitlines()])
    return sorted(dict(zip(*sides, strict=True)).items(), key=lambda pair: hashed(pair[0]))


def write_pairs(path: Path, pairs: Pairs) -> None:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")


def outputs(run: Path, pairs: Pairs) -> list[str]:
    return [str(output) for output in dragoman.load(run, device="cpu").predict([source for source, _ in pairs])]


def adapted(run: Path, place: Path, mix: float, settings: list[str]) -> tuple[Path, Adaptation]:
    """A copy of a run that has learned from the corrections."""
    folder = place / f"mix-{mix:g}"
    shutil.copytree(run, folder)
    return folder, dragoman.adapt(folder, place / "corrections.tsv", *settings, mix=mix, device="cpu", quiet=True)


def report(name: str, before: list[str], after: list[str], pairs: Pairs) -> None:
    """Scores of both versions on the same pairs, with the p-value of the difference."""
    references = [target for _, target in pairs]
    scores = dragoman.compare({"before": before, "after": after}, references, ("chrf", "bleu"))
    for metric in ("chrf", "bleu"):
        old, new = (score for score in scores if score.metric == metric)
        assert new.versus is not None
        print(f"{name} ({len(pairs):,}), {metric}: {old.score:.1f} → {new.score:.1f} (p = {new.versus.bootstrap:.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", type=Path, help="the model, trained here if the folder does not exist")
    parser.add_argument("--mix", type=float, default=1.0)
    parser.add_argument("--develop", action="store_true")
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    captions = read_captions(options.data, "train")[:CAPTIONS]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run = options.run or place / "en-de"
        if not run.exists():
            write_pairs(run.with_suffix(".tsv"), read_tatoeba(options.data, "train")[:GENERAL])
            dragoman.train(run.with_suffix(".tsv"), run, *MODEL)
        write_pairs(place / "corrections.tsv", captions[:CORRECTED])
        part = "dev" if options.develop else "test"
        parts = {
            "captions": read_captions(options.data, "val") if options.develop else captions[CORRECTED:],
            "general text": read_tatoeba(options.data, part)[:JUDGED],
        }
        began = time.monotonic()
        new, result = adapted(run, place, options.mix, options.settings)
        kept = "kept" if result.kept else f"not kept: {result.reason}"
        print(f"mix {options.mix:g}: {kept}, after {time.monotonic() - began:.0f} s")
        print(f"corrections held out: {result.held_out}; general pairs of the run: {result.general}", flush=True)
        for name, pairs in parts.items():
            report(name, outputs(run, pairs), outputs(new, pairs), pairs)


if __name__ == "__main__":
    main()
