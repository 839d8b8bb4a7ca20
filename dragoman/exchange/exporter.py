"""The contract of exporters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Protocol

from dragoman.runs import Run


class Exporter(Protocol):
    """A file format of another program."""

    name: ClassVar[str]  # what `--to` calls it
    about: ClassVar[str]  # one line for help

    def blockers(self, run: Run) -> list[str]:
        """Every setting of the run that the format cannot express: setting, found, expected. Empty: it can be exported.

        Collect them all, so that a user sees every reason at once.
        """

    def export(self, run: Run, path: Path, options: Mapping[str, str]) -> None:
        """Write the run to a new path: a folder that the exporter makes, or a file.

        `options` are further options of `dragoman export`: precision, source_language, target_language.
        """
