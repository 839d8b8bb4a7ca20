"""Choose features, model and budget from a manifest of recordings, text lines or images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from dragoman.auto.budget import cosine_schedule, lower_rate, started_settings
from dragoman.auto.choices import STEPS, Choice, chosen, finish
from dragoman.base import DataError
from dragoman.base import config as settings
from dragoman.base.config import merge, override
from dragoman.data import FEW, DataConfig, Example, Files, read_examples, too_few, usable_examples
from dragoman.data.media import FeatureExtractor, MediaError, kind_by_name, read_bytes, read_sample_rate
from dragoman.runs.tasks import Config, MediaTask, Task, Transcribe

# Narrow-band audio: with few samples a second, a window resolves few frequencies.
WIDE_BAND, NARROW_BAND_FEATURES = 16_000, {"num_mels": 23}
INNER = {"kind": "recurrent", "layers": 2, "width": 256}
VIDEO = {"kind": "frames", "subsampling": {"kind": "pictures"}, "inner": INNER}
MODELS: dict[str, dict[str, Any]] = {
    "audio": {"augment": {"kind": "specaugment"}, "encoder": {"inner": INNER}},
    "line-image": {"augment": {"kind": "line"}, "encoder": {"inner": INNER}},
    "picture": {"augment": {"kind": "picture"}, "encoder": {"kind": "resnet"}, "decoder": {"kind": "recurrent"}},
    "video": {"encoder": VIDEO, "decoder": {"kind": "recurrent"}},
}
LABEL_MODELS: dict[str, dict[str, Any]] = {
    "audio": {"augment": {"kind": "specaugment"}, "encoder": {"kind": "frames", "inner": INNER}},
    "line-image": {"encoder": {"kind": "frames", "inner": INNER}},
    "picture": {"augment": {"kind": "picture"}, "encoder": {"kind": "resnet"}},
    "video": {"encoder": VIDEO},
}
FIRST_LINES = 3


def configure_media(
    task: Task, entry: Any, files: Files, overrides: Sequence[str], media: str
) -> tuple[Config, list[str]]:
    """A configuration with overrides, and the reasons; `media` is "audio" or "picture"."""
    base: dict[str, Any] = {"task": task.name, "data": {"train": entry}}
    given: dict[str, Any] = override({}, overrides)
    source = given.get("tokenizer", {}).get("source", {})
    wanted: dict[str, Any] = {"kind": source} if isinstance(source, str) else source
    writes_text, transcribes = isinstance(task, MediaTask), isinstance(task, Transcribe)
    theirs = started_settings(given) if writes_text else {}
    if theirs.get("task") != task.name:
        theirs = {}
    models = MODELS if writes_text else LABEL_MODELS
    target = {"target": {"kind": "characters" if transcribes else "words"}} if writes_text else {}

    def choices(features: dict[str, Any]) -> list[Choice]:
        if theirs:
            table = merge(base, {"data": {"max_length": theirs["data"]["max_length"]}})
            table |= {"model": theirs["model"], "search": theirs["search"]}
        else:
            tokenizers = {"source": features, **target}
            table = merge(base, {"tokenizer": tokenizers, "model": models.get(features["kind"], {})})
        return chosen(table)

    kind = wanted.get("kind", media)
    if transcribes and wanted and "kind" not in wanted and media_of(files, overrides) == "picture":
        kind = "line-image"  # its settings are no mistakes
    features = {"kind": kind, **NARROW_BAND_FEATURES} if kind == "audio" else {"kind": kind}
    trial = finish(choices(features), overrides)[0]  # mistakes first
    examples = manifest_examples(task, trial, files)
    reason = "model, features and tokenizer: those of the run from which training starts"
    if not theirs:
        features, reason = choose_features(media, wanted, examples, trial.data)
    count = sum(len(example.references) for example in examples)
    rows = typical_rows(finish(choices(features), overrides)[0].tokenizer.source, examples)
    metric = "cer" if transcribes else task.config.metrics()[1]
    if theirs:
        batch_tokens, epochs, fewest = int(theirs["train"]["batch_tokens"]), 20, 200
    else:
        batch_tokens = int(min(20_000, max(4 * rows, count * rows / 8)))
        epochs, fewest = (60, 600) if writes_text else (30, 300)
    steps = max(fewest, min(20_000, math.ceil(epochs * max(1.0, count * rows / batch_tokens))))
    training = cosine_schedule(steps, batch_tokens, metric)
    if writes_text:  # validation decodes, which takes longer than labels do
        training["validate_every"] = training["save_every"] = max(50, min(1000, steps // 20))
    budget = f"budget: {steps:,} steps of {batch_tokens:,} rows of features for {count:,} examples"
    if theirs:
        training["freeze"] = theirs["train"].get("freeze", [])
        lower_rate(training, theirs)
    else:
        budget += f"; the trainer keeps the weights with the best {metric}"
    return finish(
        [Choice("", None, reason), *choices(features), *chosen({"train": training}, {STEPS: budget})], overrides
    )


def media_of(files: Files, overrides: Sequence[str]) -> str:
    """ "audio" or "picture" if the first line of the data names such a file, "video" if the settings do; else empty."""
    table: dict[str, Any] = override({}, overrides)
    source, given = table.get("tokenizer", {}).get("source", {}), table.get("data", {})
    if "video" in (source, source.get("kind") if isinstance(source, Mapping) else source):
        return "video"  # its files are folders, which have no suffix
    read = settings.build(DataConfig, merge({"train": "-"}, given if isinstance(given, Mapping) else {}), "data")
    read = replace(read, columns=read.columns[:2])  # two texts before a label have three
    for item in islice(read_examples(read, files), FIRST_LINES):
        name = item.source if isinstance(item, Example) else ""
        if (kind := kind_by_name(name)) and " " not in name.strip():
            return kind
    return ""


def manifest_examples(task: Task, config: Config, files: Files) -> list[Example]:
    """The examples of the manifest; faulty lines are an error here if training would stop at them."""
    examples = list(usable_examples(config.data, files, example_format=task.example_format(config)))
    if len(examples) < 2:
        raise too_few(files, f"found {len(examples)} examples")
    return examples


def choose_features(
    media: str, wanted: dict[str, Any], examples: Sequence[Example], data: DataConfig
) -> tuple[dict[str, Any], str]:
    """The settings of the features, from the overrides and the first readable file; and the reason."""
    failed = 0
    for example in examples:
        name = example.model_input
        line_image = media == "audio" and kind_by_name(name) != "audio"
        kind = wanted.get("kind") or ("line-image" if line_image else media)
        try:
            content = read_bytes(name, folders=kind == "video")
            if kind != "audio":
                return {"kind": kind}, f"source: {kind}, as in {name}"
            rate = wanted.get("sample_rate") or read_sample_rate(content, name)
            features = {"kind": kind, **({} if rate >= WIDE_BAND else NARROW_BAND_FEATURES)}
            if "sample_rate" in wanted:
                return features, f"source: audio of {rate:,} samples a second, as asked"
            return {**features, "sample_rate": rate}, f"source: audio of {rate:,} samples a second, as in {name}"
        except MediaError as error:
            failed += 1
            if data.faults != "skip" and (data.faults != "few" or failed * FEW > len(examples)):
                raise DataError(f"{example.location}: {error}{media_hint(error, data)}") from None
            last = error
    raise DataError(f"none of {len(examples):,} files can be read; the last: {last}{media_hint(last, data)}")


def media_hint(error: MediaError, data: DataConfig) -> str:
    """Where files were searched, if that is the problem."""
    if error.kind != "missing-file":
        return ""
    value = f"is '{data.media}'" if data.media else "is not set: names are relative to the manifest"
    return f"; data.media, the folder or archive that files are in, {value}"


def typical_rows(features: Any, examples: Sequence[Example]) -> int:
    """The number of feature rows of the first readable file."""
    for example in examples:
        try:
            return len(FeatureExtractor(features).encode(example.model_input))
        except MediaError:
            continue
    return 1
