"""Text for people: control characters in data must not steer a terminal, also where it comes through a pipe."""

from __future__ import annotations

import html
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

# Escape sequences can move the cursor, hide text, set the title and answer for the user. Tabs and line feeds are text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# The module that draws runs and predictions for notebooks. `import dragoman` sets it, because its drawings are made by
# code that imports the runs.
pictures: Callable[[], Any]


def visible(text: str) -> str:
    r"""The text with control characters as escapes: "\x1b[31m" in place of the sequence itself."""
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


class GuardedStream:
    """Standard output or error: all that is printed is visible text.

    Progress bars, styles and data in a file or pipe go to `stream` itself.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(visible(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def guarded(stream: Any) -> Any:
    """The stream, guarded. A pager or a log that is shown later is a terminal, too."""
    return stream if isinstance(stream, GuardedStream) else GuardedStream(stream)


def unguarded(stream: Any) -> Any:
    """The stream itself, for data, and for progress bars and styles, whose texts must be made visible first."""
    return stream.stream if isinstance(stream, GuardedStream) else stream


def in_notebook() -> bool:
    """Whether a notebook shows the output: it understands a carriage return, and no other control of the cursor.

    A shell command of a cell (`!dragoman train …`) gets a pseudo-terminal and the environment of the kernel.
    """
    return in_kernel() or "JPY_PARENT_PID" in os.environ


def in_kernel() -> bool:
    """Whether this process is the kernel of a notebook, which can show HTML."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table for a notebook; a column without any entry is left out."""
    cells = [[str(cell) for cell in row] for row in rows]
    used = [index for index in range(len(head)) if any(row[index] for row in cells)]
    lines = ["".join(f"<td>{html.escape(row[index])}</td>" for index in used) for row in cells]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    names = "".join(f"<th>{html.escape(head[index])}</th>" for index in used)
    return f"<table><caption>{html.escape(caption)}</caption><tr>{names}</tr>{body}</table>"
