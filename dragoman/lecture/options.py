"""The options of `lecture`. Nothing heavy is imported, so that --help is quick."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.base.config import setting


@dataclass(frozen=True)
class LectureOptions:
    """Where a lecture is made, and how much of it."""

    output: str = setting(
        "lecture", flag="-o --output", metavar="FOLDER", help="where to make it; the same command resumes there"
    )
    slow: bool = setting(False, flag="--slow", help="also draw the figures that take minutes each")
    files_only: bool = setting(
        False, flag="--files-only", help="make the sample files and the runs alone, to draw the figures yourself"
    )
