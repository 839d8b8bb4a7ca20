"""The registry of exporters, and the one function that writes a run in the format of another program.

An exporter is one object with a name, a list of everything that prevents the export of a run, and an export function.
`register` makes it available to `dragoman export --format NAME`, to its help and to `export_run`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Protocol

from dragoman.errors import ConfigError, RunError, hint
from dragoman.exchange.arpa import ArpaExporter
from dragoman.exchange.ctranslate2 import CTranslate2Exporter
from dragoman.files import remove_folder
from dragoman.runs import Run


class Exporter(Protocol):
    """A file format of another program."""

    @property
    def name(self) -> str:
        """What `--format` calls it."""

    @property
    def about(self) -> str:
        """One line for help."""

    def blockers(self, run: Run) -> list[str]:
        """Every setting of the run that the format cannot express: setting, found, expected. Empty: it can be exported.

        Collect them all, so that a user sees every reason at once.
        """

    def export(self, run: Run, folder: Path) -> None:
        """Write the run into an existing, empty folder."""


EXPORTERS: dict[str, Exporter] = {}


def register(exporter: Exporter) -> Exporter:
    """Make an exporter available under its name."""
    assert exporter.name not in EXPORTERS, f"the exporter {exporter.name} is registered already"
    EXPORTERS[exporter.name] = exporter
    return exporter


register(CTranslate2Exporter())
register(ArpaExporter())


def export_run(run: str | Path, folder: str | Path, name: str) -> Path:
    """Write a trained run in the format of this name into a new folder: whole, or not at all."""
    if name not in EXPORTERS:
        raise ConfigError(f"format: found {name!r}, no such format. {hint(name, EXPORTERS)}")
    exporter, opened, path = EXPORTERS[name], Run(run), Path(folder)
    opened.weights_path()  # an untrained run is refused before anything else is said about it
    if reasons := exporter.blockers(opened):
        raise ConfigError(f"{name} cannot express this run: " + "; ".join(reasons))
    if path.exists():
        raise RunError(f"{path}: exists already; expected the name of a new folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as scratch:
        part = Path(scratch) / path.name
        part.mkdir()
        try:
            exporter.export(opened, part)
            part.rename(path)
        finally:
            remove_folder(part)
    return path
