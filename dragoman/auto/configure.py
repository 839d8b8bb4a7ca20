"""A configuration from the data alone: measure the data, choose, and say why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dragoman.auto.budget import started_settings
from dragoman.auto.choices import STEPS, Choice, chosen, finish, scaled, table_of, value_of, without
from dragoman.auto.labels import configure_labels
from dragoman.auto.language_model import configure_language_model
from dragoman.auto.media import configure_media, media_of
from dragoman.auto.pairs import choose_pairs
from dragoman.auto.portfolio import (
    MORE_DROPOUT,
    Candidate,
    candidates_for,
    default_candidate,
    is_transformer,
    phrases_for,
)
from dragoman.auto.profile import PairProfile, describe, label_advice, profile_pairs, warnings
from dragoman.base import ConfigError, Progress, WarningLine
from dragoman.base import config as settings
from dragoman.base.config import merge, override
from dragoman.data import DataConfig, Files, Pairs
from dragoman.data.readers import header_row
from dragoman.runs.tasks import DEFAULT_TASK, TASKS, Config, MediaTask, Transcribe, build, preset_table, started_folder
from dragoman.training import resolve_device

# Settings of encoder and decoder that may change while the rest of the default Transformer stays.
RESIZED = {"layers", "feedforward", "dropout", "attention_dropout", "feedforward_dropout"}


def configure(
    files: Files,
    overrides: Sequence[str] = (),
    progress: Progress = lambda doing, count: None,
    *,
    neural: bool = False,
) -> tuple[Config, list[str]]:
    """A configuration with `place=value` overrides, and the reasons; `neural`: no classical model for few pairs."""
    given = override({}, overrides)
    preset = preset_table(str(given["preset"])) if given.get("preset") is not None else {}
    name = given.get("task", preset.get("task", DEFAULT_TASK))
    if name == DEFAULT_TASK:
        return configure_pairs(files, overrides, progress, neural)
    task, entry = TASKS.get(str(name)), as_entry(files)
    if task is None:
        return build(override({"data": {"train": entry}}, overrides)), []  # raises the error
    if task.is_language_model:
        return configure_language_model(task, entry, files, overrides)
    if isinstance(task, MediaTask):
        return configure_media(task, entry, files, overrides, "audio" if isinstance(task, Transcribe) else "picture")
    if task.config.reads_media and (media := media_of(files, overrides)):
        return configure_media(task, entry, files, overrides, media)
    if task.automatic is not None:
        return configure_labels(task, entry, files, overrides)
    table = merge(task.starter.table, {"data": {"train": entry}})
    return build(override(table, overrides)), ["settings: those of the starter configuration"]


def as_entry(files: Files) -> Any:
    """The value of data.train."""
    return {"source": files.source, "target": files.target} if isinstance(files, Pairs) else files


def configure_pairs(
    files: Files, overrides: Sequence[str], progress: Progress, neural: bool = False
) -> tuple[Config, list[str]]:
    given = override({}, overrides)
    preset = None if given.get("preset") is None else str(given["preset"])
    profile, train = profile_files(files, given, progress)
    gpu = trains_on_gpu(given)
    kept = None if neural or not is_left_open(given) else phrases_for(profile, gpu)
    kept = kept or resized_transformer(profile, given, gpu)
    choices = [*train, *choose_pairs(profile, preset, gpu=gpu, transformer=chooses_model(given), candidate=kept)]
    theirs, has_budget = started_settings(given), value_of(choices, STEPS) is not None
    if has_budget and (theirs or other_kinds(given)):  # these were chosen for the automatic model
        choices = without(choices, "train.optimizer.learning_rate", "train.objective")
    if theirs:
        choices = like_started_run(choices, theirs, given)
    elif has_budget and other_kinds(given):
        tie = value_of(choices, "model.tie", "target")
        choices = [*choices, Choice("model.tie", "target" if tie == "all" else tie)]
    config, reasons = finish(choices, overrides)
    return config, [*reasons, *advice(profile)]


def profile_files(files: Files, given: Mapping[str, Any], progress: Progress) -> tuple[PairProfile, list[Choice]]:
    """The profile of files of pairs, and the settings of `data` that read them."""
    data = given.get("data", {})
    read = settings.build(
        DataConfig, merge({"train": as_entry(files)}, data if isinstance(data, Mapping) else {}), "data"
    )
    names = header_row(files, read)
    if not names:
        return profile_pairs(files, read, progress), [Choice("data.train", as_entry(files))]
    note = f"header: the first line ({', '.join(names)}) names the columns and is no pair"
    choices = [Choice("data.train", as_entry(files)), Choice("data.header", True, note)]
    return profile_pairs(files, replace(read, header=True), progress), choices


def advice(profile: PairProfile) -> list[str]:
    return [WarningLine(f"warning: {line}") for line in (*warnings(profile), label_advice(profile)) if line]


def like_started_run(choices: list[Choice], theirs: Mapping[str, Any], given: Mapping[str, Any]) -> list[Choice]:
    """The choices for pairs where train.start_from names a run: its tokenizers and, unless asked otherwise, its model.

    Weights of another model or with another vocabulary could not be used.
    """
    choices = without(choices, "tokenizer")
    origin = f"those of {started_folder(given)}, from which training starts"
    tokenizers = Choice("", None, f"tokenizers: {origin}")
    if theirs.get("task", DEFAULT_TASK) != DEFAULT_TASK:
        return [tokenizers, *choices]
    data = [Choice(f"data.{name}", theirs["data"][name]) for name in ("units", "max_length") if name in theirs["data"]]
    choices = [*without(choices, *(choice.place for choice in data)), *data]
    if "preset" in given:
        return [tokenizers, *choices]
    optimizer = {name: value for name, value in theirs["train"].get("optimizer", {}).items() if name != "warmup"}
    choices = [
        Choice("", None, f"model and tokenizers: {origin}"),
        *without(choices, "preset", "model"),
        *chosen({"model": theirs.get("model", {}), "train": {"optimizer": optimizer}}),
    ]
    if frozen := theirs["train"].get("freeze"):  # an imported T5 stays one
        why = f"frozen as there: {', '.join(frozen)}; train.freeze=[] trains all weights"
        choices.append(Choice("train.freeze", frozen, why))
    return choices


def configure_candidates(
    files: Files, overrides: Sequence[str], progress: Progress = lambda doing, count: None
) -> tuple[dict[str, Config], list[str]]:
    """A configuration for every candidate of the portfolio that fits the data, the default model first; with reasons.

    Overrides that choose a preset or parts of the model leave one configuration: what was asked for. A candidate that
    does not have the settings of the overrides is left out.
    """
    given = override({}, overrides)
    if given.get("task", DEFAULT_TASK) != DEFAULT_TASK:
        raise ConfigError(
            f'--time, --trials and --ensemble search models for task = "translate"; found {given["task"]!r}'
        )
    if "preset" in given or chooses_model(given) or started_folder(given):
        config, reasons = configure(files, overrides, progress)
        return {str(given.get("preset") or "your-settings"): config}, reasons
    profile, train = profile_files(files, given, progress)
    configs: dict[str, Config] = {}
    gpu = trains_on_gpu(given)
    first, default = choose_pairs(profile, gpu=gpu), default_candidate(profile, gpu)
    tables = {value_of(first, "preset") if default is None else default.name: first}
    for candidate in candidates_for(profile, gpu):
        tables.setdefault(candidate.name, choose_pairs(profile, gpu=gpu, candidate=candidate))
    left_out = []
    for name, choices in tables.items():
        try:
            configs[name] = build(table_of(scaled([*train, *choices], given)), overrides)
        except ConfigError as error:
            if not configs:  # the default model: an error without a search too
                raise
            left_out.append(f"search: {name} is left out ({error})")
    kept = [choice.why for choice in without(first, "model", "preset", "train") if choice.why]
    header = [choice.why for choice in train if choice.why]
    return configs, [*header, *describe(profile), *kept, *advice(profile), *left_out]


def trains_on_gpu(given: Mapping[str, Any]) -> bool:
    train = given.get("train", {})
    device = train.get("device", "auto") if isinstance(train, Mapping) else "auto"
    return str(device).startswith("cuda") or (device == "auto" and resolve_device("auto").type == "cuda")


def is_left_open(given: Mapping[str, Any]) -> bool:
    """Whether overrides allow any model: they set no preset, no part of a model and nothing of its training steps."""
    data, train = given.get("data", {}), given.get("train", {})
    if not isinstance(data, Mapping) or not isinstance(train, Mapping):
        return False
    if {"general", "hallucinate", "context", "memory"} & set(data):
        return False
    return set(given) <= {"task", "data", "train"} and set(train) <= {"device", "seed", "decode"}


def chooses_model(given: Mapping[str, Any]) -> bool:
    """Whether overrides expect a Transformer: they set parts of the model, or a context, which few others read."""
    model, data = given.get("model", {}), given.get("data", {})
    if isinstance(data, Mapping) and (data.get("context") or data.get("memory")):
        return True
    return not isinstance(model, Mapping) or bool({"kind", "encoder", "decoder"} & set(model))


def other_kinds(given: Mapping[str, Any]) -> bool:
    """Whether overrides choose another model, encoder or decoder than the automatic Transformer."""
    model = given.get("model", {})
    if not isinstance(model, Mapping):
        return True
    parts = [model.get(side, {}) for side in ("encoder", "decoder")]
    kinds = [part.get("kind", "transformer") if isinstance(part, Mapping) else part for part in parts]
    return model.get("kind", "encoder-decoder") != "encoder-decoder" or set(kinds) != {"transformer"}


def resized_transformer(profile: PairProfile, given: Mapping[str, Any], gpu: bool) -> Candidate | None:
    """The default model, if it is a Transformer and overrides set only its depth, feed-forward size and dropout."""
    model = given.get("model", {})
    if "preset" in given or not isinstance(model, Mapping) or "kind" in model:
        return None
    sides = ("encoder", "decoder")
    if not all(isinstance(part := model.get(side, {}), Mapping) and set(part) <= RESIZED for side in sides):
        return None
    default = default_candidate(profile, gpu)
    if default is None or not is_transformer(default):
        return None
    # Whoever sets the dropout of a side means all of it.
    given_dropout = tuple(f"model.{side}." for side in sides if "dropout" in model.get(side, {}))
    more = {setting for setting in MORE_DROPOUT if setting.startswith(given_dropout)}
    return replace(default, overrides=tuple(setting for setting in default.overrides if setting not in more))
