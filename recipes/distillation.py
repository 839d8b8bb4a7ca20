"""One model that learned from four different ones: token-level distillation on Multi30k English → German.

    python recipes/distillation.py --data PATH_TO_DATA [--seeds 1 2 3] [PLACE=VALUE ...]

Three Transformers and a Luong model are trained on the pairs with one vocabulary. Every student has the size of the
first teacher. It learns from the references and from the teachers' outputs, and at every position from the mean of
their probabilities (`dragoman distil --token-level`). Teachers and ensemble are scored on the validation part, the
students on test2016 too. The same command goes on where it was stopped; further arguments are settings of all
trainings. Writes recipes/results/multi30k-distilled.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from own_pairs import bleu, dragoman, write
from run import HERE, hardware, moses_scores, read_lines

TRAINING = [
    "train.steps=8000", "train.batch_tokens=4096", "train.validate_every=800", "train.save_every=800",
    "train.metric=bleu", "train.decode=1014", "train.patience=0", "train.optimizer.schedule=cosine",
]  # fmt: skip
TRANSFORMER = [
    "preset=transformer-small", *TRAINING, "train.optimizer.learning_rate=2e-3", "train.optimizer.warmup=800",
    "train.average.kind=ema", "train.average.decay=0.999",
    *(f"model.{side}.{setting}" for side in ("encoder", "decoder") for setting in (
        "norm_kind=rms", "activation=silu", "gated=true", "bias=false", "attention_dropout=0.1",
        "feedforward_dropout=0.3")),
]  # fmt: skip
R_DROP = ["train.objective.kind=r-drop", "train.objective.weight=1.0", "train.objective.warmup=2000"]
TEACHERS = {
    "relative": [*TRANSFORMER, *R_DROP, "model.encoder.positions.kind=relative-bias",
                 "model.decoder.positions.kind=relative-bias"],
    "rotary": [*TRANSFORMER, *R_DROP, "model.encoder.positions.kind=rotary", "model.decoder.positions.kind=rotary"],
    "deep": [*TRANSFORMER, "model.encoder.positions.kind=relative-bias", "model.decoder.positions.kind=relative-bias",
             "model.encoder.layers=6", "model.decoder.layers=6", "model.decoder.dropout=0.35"],
    "luong": ["preset=luong-2015-small", *TRAINING, "model.encoder.dropout=0.5", "model.decoder.dropout=0.5",
              "train.optimizer.warmup=400"],
}  # fmt: skip


def read_part(data: Path, part: str) -> list[list[str]]:
    """The sentences of a part of Multi30k in both languages; one holds a tab."""
    sides = (read_lines(data / "multi30k" / f"{part}.{language}.gz") for language in ("en", "de"))
    return [[" ".join(line.split()) for line in lines] for lines in sides]


def data_file(data: Path, work: Path, part: str) -> Path:
    """A part of Multi30k as tab-separated pairs."""
    return write(work / f"{part}.tsv", list(zip(*read_part(data, part), strict=True)))


def ensemble(work: Path) -> Path:
    """A run folder with all teachers."""
    from dragoman.runs.folder import write_members

    first, *others = TEACHERS
    folder = work / "teachers"
    if not folder.exists():
        made = work / "teachers.part"
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(work / first, made)
        for name in others:
            shutil.copytree(work / name, made / name)
        write_members(made, others)
        made.rename(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds the data sets")
    parser.add_argument("--work", type=Path, default=Path("runs/distillation"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the students")
    parser.add_argument("--parallel", type=int, default=4, help="runs trained at the same time")
    given, settings = parser.parse_known_args()
    work, started = given.work.absolute(), time.time()
    work.mkdir(parents=True, exist_ok=True)
    pairs, valid = (data_file(given.data, work, part) for part in ("train", "val"))
    sources, references = read_part(given.data, "test_2016_flickr")
    test = work / "test.txt"
    test.write_text("".join(f"{source}\n" for source in sources), encoding="utf-8")
    words = ["tokenizer.source.kind=subwords", "tokenizer.source.vocab_size=4400"]

    def teach(name: str, seed: int) -> Path:
        run: Path = work / name
        asked = [f"data.valid={valid}", *words, *TEACHERS[name], f"train.seed={seed}", *settings]
        dragoman("train", pairs, "--run", run, "-q", *asked)
        return run

    def learn(seed: int) -> Path:
        run: Path = work / f"student-{seed}"
        plain = [setting for setting in TEACHERS["relative"] if setting.startswith("train.") and setting not in R_DROP]
        asked = [*plain, f"train.seed={seed}", *settings]
        dragoman("distil", ensemble(work), "--token-level", "--run", run, "-q", *asked)
        return run

    def score(run: Path) -> dict[str, Any]:
        outputs = dragoman("predict", run, test).splitlines()
        found = moses_scores(sources, outputs, references, "de")
        return {"valid": bleu(run, valid), "moses": round(found["moses_bleu"], 2), "signature": found["signature"]}

    with ThreadPoolExecutor(given.parallel) as pool:
        taught = list(pool.map(teach, TEACHERS, range(1, len(TEACHERS) + 1)))
        result: dict[str, Any] = {
            "hardware": hardware(),
            "settings": settings,
            "teachers": dict(zip(TEACHERS, pool.map(bleu, taught, [valid] * len(taught)), strict=True)),
            "ensemble": bleu(ensemble(work), valid),
        }
        students = list(pool.map(learn, given.seeds))
        result["students"] = dict(zip(map(str, given.seeds), pool.map(score, students), strict=True))
    result["mean"] = round(statistics.mean(found["moses"] for found in result["students"].values()), 2)
    result["seconds"] = round(time.time() - started)
    (HERE / "results" / "multi30k-distilled.json").write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
