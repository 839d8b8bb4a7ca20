"""Which plug-ins a run needs. A run folder names them and never imports them: it stays data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from dragoman.base import Plugin, RunError, broken_plugins, plugins
from dragoman.data import paths_of
from dragoman.data.readers import READERS, suffix_of
from dragoman.runs.tasks.config import Config
from dragoman.scoring import METRICS


def needed_plugins(config: Config) -> list[Plugin]:
    """The plug-ins whose settings, metric or readers a configuration uses."""
    data = config.data
    files = [path for part in (data.train, data.valid, data.general) if part is not None for path in paths_of(part)]
    modules = {
        *(type(part).__module__ for part in parts_of(config)),
        *(READERS.module_of(suffix_of(path)) for path in files),
        *(METRICS.module_of(name) for name in METRICS if name[1] == config.train.metric),
    }
    outside = {name for name in modules if name and name.partition(".")[0] != "dragoman"}
    return sorted({plugins.plugin_of(name) for name in outside})


def parts_of(settings: Any) -> Iterator[Any]:
    if isinstance(settings, tuple):
        for item in settings:
            yield from parts_of(item)
    elif is_dataclass(settings):
        yield settings
        for field in fields(settings):
            yield from parts_of(getattr(settings, field.name))


def check_plugins(folder: Path, needed: list[Plugin]) -> None:
    """Raise a RunError that names every plug-in which a run needs and this process has not loaded."""
    plugins.load()
    missing = [plugin for plugin in needed if plugin.module not in sys.modules]
    if missing:
        lines = (f"{folder}: this run needs the plug-in {plugin}; {advice(plugin)}" for plugin in missing)
        raise RunError("\n".join(lines))


def advice(plugin: Plugin) -> str:
    if plugin.module in broken_plugins:
        return broken_plugins[plugin.module]
    if plugin.module == "__main__":
        return "the script or notebook that trained it registered an entry; do so again before you load it"
    named = f"name its module: dragoman --import {plugin.module} …, or {plugins.VARIABLE}={plugin.module}"
    return f"pip install {plugin.package}, or {named}" if plugin.package else named
