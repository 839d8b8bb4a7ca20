"""A configuration from nothing but a manifest of recordings, lines or pictures: looks at it, chooses, and says why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dragoman.config.settings import merge, override
from dragoman.data.corpus import DataConfig, Files, fault_message, paths_of, read_all
from dragoman.data.examples import Example, Fault, Pairs
from dragoman.data.formats.media import CAPTIONS, SOUNDS, TRANSCRIPTS
from dragoman.data.media.archives import MediaError, read_bytes
from dragoman.data.media.audio import decoded
from dragoman.errors import DataError
from dragoman.tasks.config import Config, build, task_metrics


def configured_media(files: Files, task: str, overrides: Sequence[str]) -> tuple[Config, list[str]]:
    """A whole configuration for this manifest with `place=value` settings on top, and the reasons for the rest."""
    entry: Any = {"source": files.source, "target": files.target} if isinstance(files, Pairs) else files
    base: dict[str, Any] = {"task": task, "data": {"train": entry}}
    given: dict[str, Any] = override({}, list(overrides))
    asked = given.get("tokenizer", {}).get("source", {})
    wanted: dict[str, Any] = {"kind": asked} if isinstance(asked, str) else asked

    def built(reader: dict[str, Any], training: dict[str, Any]) -> Config:
        target = {"kind": "characters" if task == "transcribe" else "words"}
        table = {"tokenizer": {"source": reader, "target": target}, "model": MODELS.get(reader["kind"], {})}
        return build(override(merge(merge(base, table), training), list(overrides)))

    usual = "audio" if task == "transcribe" else "picture"
    kind = wanted.get("kind", usual)
    slips = built({"kind": kind, **FEW} if kind == "audio" else {"kind": kind}, {})  # told before files are read
    examples = usable(files, slips.data, task)
    reader, reason = chosen_reader(usual, wanted, examples, slips.data)
    count = sum(len(one.references) for one in examples)
    rows = typical_rows(built(reader, {}).tokenizer.source, examples)
    batch_tokens = int(min(20_000, max(4 * rows, count * rows / 8)))
    steps_an_epoch = max(1.0, count * rows / batch_tokens)
    steps = max(600, min(20_000, math.ceil(60 * steps_an_epoch)))
    every = max(50, min(1000, steps // 20))
    metric = "cer" if task == "transcribe" else task_metrics(task)[1]
    training = {
        "steps": steps, "batch_tokens": batch_tokens, "validate_every": every, "save_every": every, "metric": metric,
        "optimizer": {"warmup": max(20, steps // 10), "schedule": "cosine", "learning_rate": 2e-3},
    }  # fmt: skip
    budget = f"budget: {steps:,} steps of {batch_tokens:,} rows of features for {count:,} examples"
    return built(reader, {"train": training}), [reason, f"{budget}; the best {metric} is kept"]


def usable(files: Files, config: DataConfig, task: str) -> list[Example]:
    """The lines of the manifest; faults are an error here where they will be one in training."""
    items = list(read_all(config, files, shape=TRANSCRIPTS if task == "transcribe" else CAPTIONS))
    faults = [item for item in items if isinstance(item, Fault)]
    if faults and config.faults == "stop":
        raise DataError(fault_message(faults, len(faults)))
    found = [item for item in items if isinstance(item, Example)]
    if len(found) < 2:
        raise DataError(f"{', '.join(paths_of(files))}: found {len(found)} examples, expected at least 2")
    return found


def chosen_reader(
    usual: str, asked: dict[str, Any], examples: Sequence[Example], data: DataConfig
) -> tuple[dict[str, Any], str]:
    """How files are read, by what was asked for and the first file that can be read; and why."""
    for example in examples:
        named = example.tagged
        lines = usual == "audio" and not named.lower().endswith(SOUNDS)
        kind = asked.get("kind") or ("line-image" if lines else usual)
        try:
            content = read_bytes(named)
            if kind != "audio":
                return {"kind": kind}, f"source: {kind}, as in {named}"
            if "rate" in asked:
                features = {} if asked["rate"] >= ENOUGH else FEW
                return {"kind": kind, **features}, f"source: audio of {asked['rate']:,} samples a second, as asked"
            rate = decoded(content, named)[1]
            reason = f"source: audio of {rate:,} samples a second, as in {named}"
            return {"kind": kind, "rate": rate, **({} if rate >= ENOUGH else FEW)}, reason
        except MediaError as error:
            if data.faults == "stop":
                raise DataError(f"{example.place}: {error}{advice(error, data)}") from None
            last = error
    raise DataError(f"found none of {len(examples):,} files that can be read; the last: {last}{advice(last, data)}")


def advice(error: MediaError, data: DataConfig) -> str:
    """Where files were looked for, if that is what is wrong."""
    if error.kind != "missing-file":
        return ""
    place = f"is '{data.media}'" if data.media else "is not set: names are relative to the manifest"
    return f"; data.media, the folder or archive that files are in, {place}"


def typical_rows(reader: Any, examples: Sequence[Example]) -> int:
    """How many rows of features the first file that can be read has; training names the others."""
    for example in examples:
        try:
            return len(reader.features_of(example.tagged))
        except MediaError:
            continue
    return 1


ENOUGH, FEW = 16_000, {"features": 23}  # samples a second; with fewer a window tells few frequencies apart
MODELS: dict[str, dict[str, Any]] = {
    "audio": {"augment": {"kind": "masking"}, "encoder": {"inner": {"kind": "recurrent", "layers": 2, "width": 256}}},
    "line-image": {"augment": {"kind": "line"}, "encoder": {"inner": {"kind": "recurrent", "layers": 2, "width": 256}}},
    "picture": {"augment": {"kind": "picture"}, "encoder": {"kind": "resnet"}, "decoder": {"kind": "recurrent"}},
}
