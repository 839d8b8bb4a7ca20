"""What a notebook shows of runs and predictions. The pictures are drawn by `dragoman.notebook`."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from dragoman.files import atomic_write


@dataclass(frozen=True)
class Picture:
    """A picture or page. A notebook shows it; `save` writes it to a file for a browser."""

    title: str
    html: str = field(repr=False)
    height: int = 0  # of a whole page, in pixels; 0: a part of a page

    def save(self, path: str | Path) -> Path:
        """Write an HTML file that needs no other file."""
        page = self.html
        if not self.height:
            page = f'<!doctype html>\n<meta charset="utf-8">\n<title>{html.escape(self.title)}</title>\n{page}\n'
        with atomic_write(Path(path)) as beside:
            beside.write_text(page, encoding="utf-8", newline="\n")
        return Path(path)

    def _repr_html_(self) -> str:
        if not self.height:
            return self.html
        # A page has its own style and scripts: the frame keeps them apart from those of the notebook.
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(self.html)}" '
            f'title="{html.escape(self.title)}" style="width:100%;height:{self.height}px;border:0"></iframe>'
        )


class Drawer(Protocol):
    """The functions of `dragoman.notebook`."""

    def inspect(
        self, run: OpenRunViews, text: str, target: str | None, *, tag: str | None, beam: int | None
    ) -> Picture: ...

    def attention(self, run: OpenRunViews, text: str, output: str | None, *, tag: str | None) -> Picture: ...

    def curves(self, run: OpenRunViews) -> Picture: ...

    def run_html(self, run: OpenRunViews) -> str: ...

    def prediction_html(self, prediction: object) -> str: ...


def drawer() -> Drawer:
    # The reports import inference, so that this import has to wait until a picture is asked for.
    return cast("Drawer", import_module("dragoman.notebook"))


class OpenRunViews:
    """Adds to an open run what a person wants to look at."""

    def inspect(
        self, text: str, target: str | None = None, *, tag: str | None = None, beam: int | None = None
    ) -> Picture:
        """The page of `dragoman inspect`: every view of what the model does with a text.

        `target` is the output to explain, by default the model's own.
        """
        return drawer().inspect(self, text, target, tag=tag, beam=beam)

    def attention(self, text: str, output: str | None = None, *, tag: str | None = None) -> Picture:
        """The cross-attention of each output token over the input, by default for the model's own output."""
        return drawer().attention(self, text, output, tag=tag)

    def curves(self) -> Picture:
        """Training and validation loss over the steps of the run."""
        return drawer().curves(self)

    def _repr_html_(self) -> str:
        return drawer().run_html(self)
