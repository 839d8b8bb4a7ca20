"""Plug-ins: modules outside the package that add entries to its tables, and `register`, by which they do so.

A plug-in is named by an installed package (an entry point in the group `dragoman.plugins`), by `dragoman --import
MODULE` or by `DRAGOMAN_IMPORT=a,b`. All of them are loaded when a table is first read. So a command that reads no table
pays nothing, and a spawned worker needs no code of its own: it inherits the environment.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from dragoman.base.errors import ConfigError, broken_plugins

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "dragoman.plugins"
VARIABLE = "DRAGOMAN_IMPORT"
# The class of an entry, and the table it belongs to. As text, so that nothing is imported before it is needed.
TABLES = {
    "dragoman.models.entries.SequenceEncoderEntry": "dragoman.models.encoders.sequence.SEQUENCE_ENCODERS",
    "dragoman.models.entries.EncoderEntry": "dragoman.models.registry.ENCODERS",
    "dragoman.models.entries.FeatureEncoderEntry": "dragoman.models.registry.FEATURE_ENCODERS",
    "dragoman.models.entries.DecoderEntry": "dragoman.models.registry.DECODERS",
    "dragoman.training.objectives.base.ObjectiveEntry": "dragoman.training.objectives.base.OBJECTIVES",
    "dragoman.training.trackers.Tracker": "dragoman.training.trackers.TRACKERS",
    "dragoman.scoring.metric.Metric": "dragoman.scoring.registry.METRICS",
    "dragoman.runs.tasks.base.Task": "dragoman.runs.tasks.table.TASKS",
    "dragoman.data.readers.base.Reader": "dragoman.data.readers.base.READERS",
    "dragoman.decoding.constraints.compiler.NamedConstraint": "dragoman.decoding.constraints.compiler.CONSTRAINTS",
    "dragoman.decoding.method.MethodEntry": "dragoman.decoding.method.METHODS",
    "dragoman.inference.engine.exporter.Exporter": "dragoman.exchange.registry.EXPORTERS",
    "dragoman.documents.registry.DocumentFormat": "dragoman.documents.registry.FORMATS",
}
T = TypeVar("T")


class Plugin(NamedTuple):
    """A module with entries, and the installed package that it comes from, if any."""

    module: str
    package: str = ""
    version: str = ""

    def __str__(self) -> str:
        return f"'{self.module}'" + (f" of the package {self.package} {self.version}" if self.package else "")


loaded = False  # whether all plug-ins of this process are imported; tables ask before each read
_lock = threading.RLock()
_loading = False
_script_registers = False


def register(entry: T) -> T:
    """Add an entry (an encoder, decoder, metric, task, …) to the table of its kind, at any time; returns it."""
    for cls in type(entry).__mro__:
        if place := TABLES.get(f"{cls.__module__}.{cls.__qualname__}"):
            module, _, name = place.rpartition(".")
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller == "__main__":
                global _script_registers
                _script_registers = True
            getattr(import_module(module), name).add(entry, caller)
            return entry
    known = ", ".join(name.rpartition(".")[2] for name in TABLES)
    raise TypeError(f"register: found {entry!r}, expected an instance of one of {known}")


def load() -> None:
    """Import all plug-ins, once per process.

    An installed plug-in that cannot be imported is a warning: a command that does not need it goes on. One that the
    user names must be there.
    """
    global loaded, _loading
    with _lock:
        if loaded or _loading:  # a plug-in that reads a table while it is imported sees what is there
            return
        _loading = True
        try:
            for point in entry_points():
                try:
                    import_module(point.module)
                except (Exception, SystemExit) as error:
                    if point.module in broken_plugins:
                        continue
                    line = f"the plug-in {plugin_of(point.module)} cannot be imported: {_brief(error)}"
                    broken_plugins[point.module] = line
                    warnings.warn(line, stacklevel=2)
            import_named(names_in_environment())
            loaded = True
        finally:
            _loading = False


def import_named(modules: Iterable[str]) -> None:
    """Import the modules that a user names, from the current folder too; a ConfigError if one cannot be imported."""
    for module in modules:
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))  # last, so that a file here can replace no installed package
        try:
            import_module(module)
        except (Exception, SystemExit) as error:
            advice = f"; write {module[:-3]}, the name of the module" if module.endswith(".py") else ""
            raise ConfigError(
                f"--import or {VARIABLE}: the plug-in {plugin_of(module)} cannot be imported: {_brief(error)}{advice}"
            ) from error


def use(modules: Iterable[str]) -> None:
    """Import modules as plug-ins in this process and, through the environment, in those that it starts."""
    names = dict.fromkeys([*names_in_environment(), *modules])
    if names:
        load()
        import_named(names)
        os.environ[VARIABLE] = ",".join(names)


@contextmanager
def without_script() -> Iterator[None]:
    """Processes that are spawned inside the block do not import the user's script, unless it registered entries.

    They would run a script again that has no `if __name__ == "__main__"`.
    """
    main = sys.modules["__main__"]
    if not _script_registers:
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def names_in_environment() -> list[str]:
    return [name for part in os.environ.get(VARIABLE, "").split(",") if (name := part.strip())]


def entry_points() -> list[EntryPoint]:
    from importlib import metadata  # takes 30 ms, which commands that read no table save

    return list(metadata.entry_points(group=GROUP))


def plugin_of(module: str) -> Plugin:
    """The plug-in that a module belongs to, with the name and version of its package where it is installed."""
    from importlib import metadata

    root = module.partition(".")[0]
    for point in entry_points():
        if point.dist is not None and point.module.partition(".")[0] == root:
            return Plugin(point.module, point.dist.name, point.dist.version)
    for package in metadata.packages_distributions().get(root, [])[:1]:
        return Plugin(module, package, metadata.version(package))
    return Plugin(module)


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".split("\n", 1)[0]
