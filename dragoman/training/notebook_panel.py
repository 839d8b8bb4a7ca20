"""The progress of a training inside a notebook: one output of HTML that changes in place."""

from __future__ import annotations

import html
from importlib import import_module
from typing import Any

from dragoman.base import in_kernel

LINES = 200  # of messages that the panel shows


def notebook_panel() -> NotebookPanel | None:
    """A panel where a notebook's kernel shows HTML; None elsewhere."""
    return NotebookPanel() if in_kernel() else None


class NotebookPanel:
    """A bar, what is being done, and the messages below each other."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.state, self.step, self.steps = "", 0, 0
        self._output: Any = None  # of the cell that trains, made with the first line

    def line(self, text: str) -> None:
        """Add a message."""
        self.lines.append(text)
        self._show()

    def progress(self, text: str, step: int = 0, steps: int = 0) -> None:
        """Say what is being done, and how much of it is; without `steps` nobody knows."""
        self.state, self.step, self.steps = text, step, steps
        self._show()

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self.step}" max="{self.steps}"></progress> ' if self.steps else ""
        shown = [f"… {len(self.lines) - LINES:,} lines before"] if len(self.lines) > LINES else []
        text = html.escape("\n".join([*shown, *self.lines[-LINES:]]))
        return f"<div>{bar}<code>{html.escape(self.state)}</code><pre>{text}</pre></div>"

    def __repr__(self) -> str:
        return "\n".join([*self.lines, self.state])

    def _show(self) -> None:
        if self._output is None:
            self._output = import_module("IPython.display").display(self, display_id=True)
        else:
            self._output.update(self)
