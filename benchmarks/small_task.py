"""Every architecture on a small real task: pronounce words, trained on 2,000 entries of the CMU dictionary.

    python benchmarks/small_task.py [NAME ...] [--json FILE]

Each runs end to end (files, tokenizers, training loop, search, scoring) and is tested on 500 unseen words. The baseline
ignores the context of a letter: each letter gets its most frequent sound.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from dragoman.auto.demonstration import hashed, split
from dragoman.inference.load import load_predictor
from dragoman.runs import train
from dragoman.runs.tasks import config as configuration
from dragoman.scoring.report import score_table
from dragoman.training.display import Display

Table = dict[str, Any]
SIZE: Table = {"embedding": 64, "width": 96, "dropout": 0.1}
BOTH: Table = {"kind": "recurrent", **SIZE}
BAHDANAU: Table = {"kind": "recurrent", "attention": {"width": 64}, **SIZE}
TRANSFORMER: Table = {
    "kind": "transformer", "layers": 2, "width": 64, "heads": 4, "feedforward": 256, "dropout": 0.1,
}  # fmt: skip


def pair(encoder: Table, decoder: Table | None = None, **others: Any) -> Table:
    """A model of these two; without a decoder both are the same."""
    return {"encoder": encoder, "decoder": decoder or encoder, **others}


ARCHITECTURES: dict[str, Table] = {
    "sutskever": pair(
        {**BOTH, "direction": "backward"}, {"kind": "fixed-context", "begin": "copy", **SIZE}
    ),
    "sutskever, shared cells": pair(
        {**BOTH, "width": 192, "direction": "backward"},
        {"kind": "fixed-context", "begin": "copy", **SIZE, "width": 192},
        share_cells=True,
    ),
    "cho": pair(
        {**BOTH, "cell": {"kind": "gru", "reset": "before"}, "direction": "forward"},
        {"kind": "fixed-context", "cell": {"kind": "gru", "reset": "before"}, "context": "every-step",
         "readout": {"kind": "maxout", "width": 64}, **SIZE},
    ),
    "bahdanau": pair({**BOTH, "cell": "gru"}, {**BAHDANAU, "cell": "gru"}),
    "luong": pair(BOTH, {"kind": "luong", **SIZE}),
    "luong, local-m": pair(BOTH, {"kind": "luong", "attention": {"kind": "dot", "window": "monotonic"}, **SIZE}),
    "luong, local-p": pair(BOTH, {"kind": "luong", "attention": {"kind": "general", "window": "predictive"}, **SIZE}),
    "keys and values apart": pair(BOTH, {**BAHDANAU, "attention": {"kind": "dot", "keys": 96, "values": 64}}),
    "multi-head over recurrence": pair(BOTH, {**BAHDANAU, "attention": {"kind": "multi-head", "width": 64}}),
    "gnmt": pair(
        {**BOTH, "layers": 3, "direction": "first-both", "residual_from": 3},
        {**BAHDANAU, "layers": 3, "context_to": "all", "residual_from": 3},
    ),
    "plain cells": pair({**BOTH, "cell": "rnn"}, {**BAHDANAU, "cell": "rnn"}),
    "peephole cells": pair({**BOTH, "cell": "peephole-lstm"}, {**BAHDANAU, "cell": "peephole-lstm"}),
    "coupled cells": pair({**BOTH, "cell": "coupled-lstm"}, {**BAHDANAU, "cell": "coupled-lstm"}),
    "normalised cells": pair({**BOTH, "cell": "layer-norm-lstm"}, {**BAHDANAU, "cell": "layer-norm-lstm"}),
    "kalchbrenner": pair(
        {"kind": "kalchbrenner", "width": 96, "dropout": 0.1},
        {"kind": "fixed-context", "cell": "gru", "context": "every-step", **SIZE},
    ),
    "multi-kernel": pair(
        {"kind": "multi-kernel", "embedding": 64, "width": 96, "dropout": 0.1, "non_local": True},
        {"kind": "luong", **SIZE},
    ),
    "convs2s": pair({"kind": "convs2s", "layers": 2, **SIZE}),
    "dense window": pair(
        {"kind": "dense", "max_positions": 40, "embedding": 16, "hidden": 256, "width": 64, "dropout": 0.1}, BAHDANAU
    ),
    "transformer": pair(TRANSFORMER),
    "transformer, post-norm": pair({**TRANSFORMER, "norm": "post"}),
    "transformer, modern": pair(
        {**TRANSFORMER, "positions": "rotary", "norm_kind": "rms", "gated": True, "activation": "silu", "key_heads": 2}
    ),
    "transformer, relative": pair({**TRANSFORMER, "positions": "relative"}),
    "transformer, local": pair({**TRANSFORMER, "attention": {"kind": "local", "window": 4}}),
    "transformer, segments": pair({**TRANSFORMER, "attention": {"kind": "segments", "length": 4}}),
    "transformer, linear": pair({**TRANSFORMER, "attention": "linear"}),
    "transformer, cosine": pair({**TRANSFORMER, "score": "cosine"}),
    "scheduled sampling": pair(BOTH, BAHDANAU, forcing={"kind": "linear", "steps": 2000}),
    "non-autoregressive, ctc": {
        "kind": "non-autoregressive", "encoder": TRANSFORMER, "decoder": TRANSFORMER,
        "alignment": {"kind": "ctc", "upsample": 2},
    },
    "non-autoregressive, length": {
        "kind": "non-autoregressive", "encoder": TRANSFORMER, "decoder": TRANSFORMER, "alignment": "length",
    },
}  # fmt: skip


# Learns its words but not the rule behind 2,000 of them: every place of its window has weights of its own.
OVERFITS = {"dense window"}
# How many times the usual steps a slow learner needs.
SLOW = {"kalchbrenner": 6}


def data() -> tuple[list[tuple[str, str]], dict[str, list[str]]]:
    """2,000 pairs to learn from and 500 held-out words, chosen by their hash."""
    pairs, held = split()
    chosen = sorted(pairs, key=lambda pair: hashed(f"small {pair}"))[:2000]
    words = sorted(held, key=lambda word: hashed(f"small {word}"))[:500]
    return chosen, {word: held[word] for word in words}


def letter_by_letter(pairs: list[tuple[str, str]], held: dict[str, list[str]]) -> float:
    """PER when every letter says what stands most often at its place, where word and sounds are equally long."""
    seen: dict[str, Counter[str]] = {}
    for word, sounds in pairs:
        if len(word) == len(sounds.split()):
            for letter, sound in zip(word, sounds.split(), strict=True):
                seen.setdefault(letter, Counter())[sound] += 1
    said = [" ".join(seen[letter].most_common(1)[0][0] for letter in word if letter in seen) for word in held]
    return float(score_table(said, list(held.values()), units="phonemes")["per"])


def learn(name: str, pairs: list[tuple[str, str]], held: dict[str, list[str]], steps: int) -> Table:
    """Train one architecture and test it."""
    steps *= SLOW.get(name, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.tsv"
        path.write_text("".join(f"{word}\t{sounds}\n" for word, sounds in pairs), encoding="utf-8")
        model = ARCHITECTURES[name] | {"tie": "none"}
        table = {
            "data": {"train": str(path), "units": "phonemes", "max_length": 38, "cache": f"{folder}/cache"},
            "tokenizer": {"source": "characters", "target": {"kind": "words", "split": "spaces"}},
            "model": model,
            "train": {
                "steps": steps, "batch_tokens": 1024, "validate_every": steps // 4, "metric": "per", "device": "cpu",
                "optimizer": {"learning_rate": 4e-3, "warmup": 50, "schedule": "cosine"},
            },
        }  # fmt: skip
        started = time.perf_counter()
        train(configuration.build(table), f"{folder}/run", Display(quiet=True))
        seconds = time.perf_counter() - started
        predictor = load_predictor(f"{folder}/run", "cpu")
        said = [prediction.text for prediction in predictor.predict(list(held))]
        scores = score_table(said, list(held.values()), units="phonemes")
        count = sum(part.numel() for part in predictor.model.parameters())
    return {"name": name, "per": scores["per"], "wer": scores["wer"], "parameters": count, "seconds": round(seconds, 1)}


def main() -> None:
    """Train all of them, or those named, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="some architectures; all without")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in ARCHITECTURES]
    if unknown:
        parser.error(f"found {', '.join(unknown)}, expected some of: {', '.join(ARCHITECTURES)}")
    pairs, held = data()
    yardstick = letter_by_letter(pairs, held)
    print(f"{'letter by letter':<28} PER {100 * yardstick:5.1f} %")
    rows = []
    for name in options.names or ARCHITECTURES:
        rows.append(learn(name, pairs, held, options.steps))
        row = rows[-1]
        verdict = "" if row["per"] < yardstick else "  NOT BETTER THAN THE YARDSTICK"
        print(
            f"{name:<28} PER {100 * row['per']:5.1f} %  WER {100 * row['wer']:5.1f} %  "
            f"{row['parameters']:>9,} parameters  {row['seconds']:6.1f} s{verdict}",
            flush=True,
        )
    if options.json:
        machine = f"{platform.machine()} CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"
        content = {"machine": machine, "steps": options.steps, "letter_by_letter": yardstick, "rows": rows}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if any(row["per"] >= yardstick and row["name"] not in OVERFITS for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
