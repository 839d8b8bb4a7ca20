"""Load the configuration of a run: preset, then file, then `place=value`, through the one strict loader."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from dragoman.base import ConfigError, __version__, hint, nearest
from dragoman.base import config as settings
from dragoman.data import with_local_files
from dragoman.data.media import MEDIA_CONFIGS
from dragoman.data.tokenizers import NumbersConfig, RunTokenizerConfig
from dragoman.runs.tasks.base import Config
from dragoman.runs.tasks.table import TASKS

__all__ = [
    "Config",
    "build",
    "config_schema",
    "load",
    "preset_listing",
    "preset_names",
    "preset_notes",
    "preset_page",
    "preset_table",
    "preset_text",
]
DEFAULT_TASK = "translate"


def preset_names() -> list[str]:
    folder = resources.files("dragoman.base.config") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def preset_text(name: str) -> str:
    names = preset_names()
    if name not in names:
        raise ConfigError(f"preset: found {name!r}, no such preset. {hint(name, names)}")
    return (resources.files("dragoman.base.config") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


NOTES = ("about", "authors", "paper", "vocabulary", "parameters")  # for people, not for the loader


def preset_notes(name: str) -> dict[str, Any]:
    """What a preset says about itself: its paper, and its size with a vocabulary."""
    table = tomllib.loads(preset_text(name))
    return {note: table[note] for note in NOTES}


def preset_table(name: str) -> dict[str, Any]:
    table = tomllib.loads(preset_text(name))
    return {key: value for key, value in table.items() if key not in NOTES}


def build(table: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """A configuration from a table that may name a preset, with `place=value` settings on top.

    Remote files under `data` are downloaded into the cache; the configuration has their local copies.
    """
    merged = settings.override(dict(table), steps_or_epochs(overrides))
    name = merged.pop("preset", None)
    if name is not None:
        if not isinstance(name, str):
            raise ConfigError(f"preset: found {name!r}, expected the name of a preset")
        # Overrides may name the preset too, so the base is chosen after them and slid underneath.
        merged = settings.merge(preset_table(name), merged)
    if "tokenizer" not in merged and (tokenizers := started_tokenizers(merged)):
        merged["tokenizer"] = tokenizers
    return from_table(with_local_files(merged))


def steps_or_epochs(overrides: Sequence[str]) -> list[str]:
    """The overrides; of train.steps and train.epochs the last one counts."""
    places = [assignment.partition("=")[0].strip() for assignment in overrides]
    last = next((place for place in reversed(places) if place in ("train.steps", "train.epochs")), "")
    return [*overrides, "train.epochs=0"] if last == "train.steps" else list(overrides)


def from_table(table: Mapping[str, Any]) -> Config:
    """A configuration from a table that says everything, such as that of a run folder."""
    task = table.get("task", DEFAULT_TASK)
    if not isinstance(task, str) or task not in TASKS:
        raise ConfigError(f"task: found {settings.inline(task)}, no such task. {hint(str(task), TASKS)}")
    try:
        return settings.build(TASKS[task].config, table)
    except ConfigError as error:
        kind = model.get("kind") if isinstance(model := table.get("model"), Mapping) else model
        if isinstance(kind, str) and str(error).startswith("model") and (name := nearest(kind, preset_names())):
            raise ConfigError(f"{error}. Did you mean preset={name}?", error.mends) from None
        raise


def started_folder(table: Mapping[str, Any]) -> str:
    """The run that a table of settings starts from; empty where there is none, or no run: who opens it says so."""
    train = table.get("train")
    start = train.get("start_from") if isinstance(train, Mapping) else None
    folder = start.get("run") if isinstance(start, Mapping) else start
    return folder if isinstance(folder, str) and folder and (Path(folder) / "config.toml").is_file() else ""


def started_tokenizers(table: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizers of the run that another one starts from; none where it has none to give."""
    folder, task = started_folder(table), table.get("task", DEFAULT_TASK)
    if not folder:
        return {}
    whole = settings.read_toml(Path(folder) / "config.toml")
    theirs: Any = whole.get("tokenizer", {})
    assert isinstance(theirs, Mapping)
    reads_media = isinstance(source := theirs.get("source"), Mapping) and source.get("kind") in MEDIA_CONFIGS
    both = task == DEFAULT_TASK or (reads_media and whole.get("task") == task)
    tokenizers: dict[str, Any] = {}
    for side in ("source", "target"):
        if not isinstance(units := theirs.get(side), Mapping):
            continue
        if units.get("kind") == NumbersConfig.kind or units.get("kind") in MEDIA_CONFIGS:
            tokenizers[side] = dict(units)
        elif side == "source" or both:
            tokenizers[side] = {"kind": RunTokenizerConfig.kind, "run": folder, "side": side}
    return tokenizers


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """A configuration file with `place=value` settings on top."""
    table = settings.override(settings.read_toml(path), steps_or_epochs(overrides))  # an error of these names no file
    with settings.errors_in(path, overrides):
        return build(table)


def with_absolute_paths(config: Config) -> Config:
    """The same configuration, to be read from any folder."""

    def absolute(value: Any) -> Any:
        """Absolute paths in place of strings, at any depth of tuples and of settings that name files or a run."""
        if not value:  # no path
            return value
        if isinstance(value, str):
            return str(Path(value).absolute())
        if isinstance(value, tuple):
            return tuple(map(absolute, value))
        names = [name for name in ("source", "target", "file", "run", "teachers") if hasattr(value, name)]
        return replace(value, **{name: absolute(getattr(value, name)) for name in names})

    data = {name: absolute(getattr(config.data, name)) for name in ("train", "valid", "general", "media", "cache")}
    return replace(
        config,
        data=replace(config.data, **data),
        tokenizer=absolute(config.tokenizer),
        train=replace(
            config.train,
            start_from=absolute(config.train.start_from),
            objective=absolute(config.train.objective),
            vectors=absolute(config.train.vectors),
        ),
    )


def config_schema() -> dict[str, Any]:
    """The JSON Schema of a configuration file, with the tasks and parts of plug-ins."""
    preset = {"enum": [*preset_names(), "none"], "description": "a model named after a paper, or a small one"}
    configs = {name: task.config for name, task in TASKS.items()}
    return settings.file_schema(configs, DEFAULT_TASK, {"preset": preset}, f"Dragoman {__version__}: a configuration")


def preset_page(name: str) -> str:
    """A preset as a file, its notes behind '#'."""
    head, _, rest = preset_text(name).partition("\n\n")
    return "".join(f"# {line}\n" for line in head.splitlines()) + f"\n{rest}"


def preset_listing() -> str:
    """One line for each preset: parameters, and what it is of."""
    notes = {name: preset_notes(name) for name in preset_names()}
    rows = (
        f"{name:<25}{note['parameters']:>12,}  {note['about']} ({note['authors']})\n" for name, note in notes.items()
    )
    return "".join(rows)
