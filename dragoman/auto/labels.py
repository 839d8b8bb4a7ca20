"""Choose model and budget for tasks that answer without a search: classify, regress, tag, masked language models."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from dragoman.auto.budget import CHARACTERS_PER_TOKEN, EPOCHS, cosine_schedule, lower_rate, started_settings, up_to
from dragoman.auto.choices import STEPS, Choice, chosen, finish
from dragoman.base import ConfigError, WarningLine
from dragoman.base.config import default_of, fields_of, merge, override
from dragoman.data import Example, Files, Pairs, too_few, usable_examples
from dragoman.data.readers import READERS
from dragoman.data.tokenizers import number_error, series_shape
from dragoman.runs.tasks import Automatic, Classify, Config, Regress, Task, preset_table

BATCH_TOKENS = 2048
MOST_LABELS, OFTEN, SELDOM = 200, 50, 2  # labels that are compared, and how often right and misspelt ones occur
# The kind of encoder inside models that have only one.
ENCODER_KINDS = {"masked-lm": "bert", "bilm": "elmo"}


@dataclass
class LabelProfile:
    """Statistics of labelled examples."""

    count: int = 0
    characters: int = 0
    series: bool = True  # whether every source is a series of numbers
    steps: int = 0  # of all series
    channels: int = 1  # numbers in each step
    labels: Counter[str] = field(default_factory=Counter)
    places: dict[str, str] = field(default_factory=dict)  # where each label occurs first
    first: Example | None = None

    def is_series(self, task: Task) -> bool:
        """Whether to read sources as series; a single number with a label may as well be a name."""
        return self.series and (isinstance(task, Regress) or self.steps >= 2 * self.count)


def configure_labels(task: Task, entry: Any, files: Files, overrides: Sequence[str]) -> tuple[Config, list[str]]:
    """A configuration with `place=value` overrides, and the reasons."""
    given: dict[str, Any] = override({}, overrides)
    model = given.get("model", {})
    default = default_of(fields_of(task.config)["model"]).kind
    other_model = isinstance(model, Mapping) and model.get("kind", default) != default
    theirs = started_settings(given)

    def defaults(choice: Automatic) -> dict[str, Any]:
        """The automatic choices, minus those incompatible with the overrides."""
        base: dict[str, Any] = {"task": task.name, "data": {"train": entry}}
        table = merge(base, {"tokenizer": choice.table["tokenizer"]} if other_model else choice.table)
        return like_started_run(table, theirs) if theirs else table

    if preset := given.get("preset"):
        asked = {name: value for name, value in preset_table(str(preset)).items() if name not in ("task", "train")}
        choices = [Automatic(asked, f"preset: {preset}, as asked")]
    else:
        choices = [choice for choice in (task.automatic, task.automatic_series) if choice is not None]
    trial = first_valid([defaults(choice) for choice in choices], overrides)  # reports mistakes early
    profile = profile_labels(task, trial, files)
    choice = choices[0]
    if len(choices) > 1 and task.automatic_series and profile.is_series(task):
        inputs = {"model": {"encoder": {"embedding": profile.channels}}}  # as many numbers as a step has
        choice = Automatic(merge(task.automatic_series.table, inputs), task.automatic_series.reason)
    table, reason = defaults(choice), choice.reason
    if table.get("model") != choice.table["model"]:
        reason = "model: as asked" if other_model else "model: the encoder of the run it starts from"
    kind = choice.table["tokenizer"]["source"]["kind"]
    tokens = profile.characters / profile.count / CHARACTERS_PER_TOKEN.get(kind, 6)
    steps_per_epoch = max(1.0, profile.count * (tokens + 1) * 1.15 / BATCH_TOKENS)
    steps = max(300, min(20_000, math.ceil(up_to(EPOCHS, profile.count) * steps_per_epoch)))
    metric = task.config.metrics()[1]
    table["train"] = cosine_schedule(steps, BATCH_TOKENS, metric)
    lower_rate(table["train"], theirs)
    budget = (
        f"budget: {steps:,} steps of {BATCH_TOKENS:,} tokens for {profile.count:,} examples; the trainer keeps the "
        f"weights with the best {metric}"
    )
    config, reasons = finish([Choice("", None, reason), *chosen(table, {STEPS: budget})], overrides)
    if isinstance(task, Classify) and looks_like_header(profile, files):
        assert profile.first is not None
        label = profile.first.references[0]
        reasons.append(
            f"is {profile.first.location} a header? No other line has its label '{label}'. If so, set data.header=true"
        )
    elif isinstance(task, Classify):
        reasons += misspelt_labels(profile)
    return config, reasons


def misspelt_labels(profile: LabelProfile) -> list[str]:
    """A question about every rare label that differs from a frequent one by a letter or two."""
    if len(profile.labels) > MOST_LABELS:
        return []
    frequent = [label for label, count in profile.labels.items() if count >= OFTEN]
    questions: list[str] = []
    for label, count in profile.labels.items():
        match = next(iter(get_close_matches(label, frequent, 1, 0.8)), None) if count <= SELDOM else None
        if match:
            question = f"is {profile.places[label]} a typing mistake? It has the label '{label}', which occurs "
            others = f"{count} times; '{match}' occurs {profile.labels[match]:,} times"
            questions.append(WarningLine(f"warning: {question}{others}"))
    return questions


def profile_labels(task: Task, config: Config, files: Files) -> LabelProfile:
    """Read all examples once; faulty lines are an error here if training would stop at them."""
    profile = LabelProfile()
    for example in usable_examples(config.data, files, example_format=task.example_format(config)):
        profile.count += 1
        profile.characters += len(example.source)
        profile.series = profile.series and not number_error(example.source)
        if profile.series:
            steps, profile.channels = series_shape(example.source)
            profile.steps += steps
        if isinstance(task, Classify):
            label = example.references[0]
            profile.labels[label] += 1
            if profile.labels[label] == 1 and len(profile.labels) <= MOST_LABELS:
                profile.places[label] = example.location
            profile.first = profile.first or example
    if profile.count < 2:
        raise too_few(files, f"found {profile.count} examples")
    return profile


def looks_like_header(profile: LabelProfile, files: Files) -> bool:
    """Whether the first line of a tab-separated file has a label of its own beside two or more others."""
    first = profile.first
    if first is None or (isinstance(files, Pairs) and files.file is None):
        return False
    alone = len(profile.labels) > 2 and profile.labels[first.references[0]] == 1
    return alone and first.line == 1 and bool(READERS.of(first.path).delimiter)


def first_valid(tables: Sequence[Mapping[str, Any]], overrides: Sequence[str]) -> Config:
    """The configuration of the first valid table with overrides; if none is valid, the error of the first."""
    try:
        return finish(chosen(tables[0]), overrides)[0]
    except ConfigError:
        for table in tables[1:]:
            with suppress(ConfigError):
                return finish(chosen(table), overrides)[0]
        raise


def like_started_run(table: dict[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """The table with encoder and max_length of the run that train.start_from names; its tokenizer is taken as well."""
    model: dict[str, Any] = dict(theirs.get("model", {}))
    table = {name: value for name, value in table.items() if name != "tokenizer"}
    table["data"] = {**table["data"], "max_length": theirs["data"]["max_length"]}
    if theirs.get("task") == table["task"]:
        return table | {"model": model}
    if "encoder" in model:
        encoder = {"kind": ENCODER_KINDS.get(model["kind"], "recurrent"), **model["encoder"]}
        table["model"] = {**table.get("model", {}), "encoder": encoder}
    return table
