"""An output of a search with its scores, and what a notebook shows of it."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

from dragoman.base import atomic_write, terminal
from dragoman.data import Match


class Origin:
    """The run and the input behind a prediction, which a notebook needs to show its alignment.

    The run is held weakly: a list of predictions must not keep a model in memory. A copy for another process has none.
    """

    def __init__(self, run: Callable[[], object | None], text: str, tag: str | None) -> None:
        self.run, self.text, self.tag = run, text, tag

    def __reduce__(self) -> tuple[type[Origin], tuple[Callable[[], None], str, str | None]]:
        return Origin, (no_run, self.text, self.tag)


def no_run() -> None:
    return None


@dataclass(frozen=True)
class Prediction:
    """One output; str() gives its text. A notebook colours its tokens by their probability."""

    text: str
    score: float  # outputs are ranked by it: the normalised log-probability, or what the decoding method defines
    tokens: tuple[str, ...]
    token_scores: tuple[float, ...]
    alternatives: tuple[Prediction, ...] = ()  # further outputs, best first
    confidence: float | None = None  # of a calibrated run: the probability that the whole output is the reference
    token_confidences: tuple[float, ...] = ()  # probability that each token is right, <eos> included
    memory: Match | None = None  # of a translation memory: the text itself (score 1.0), or the segment most like it
    refused: str = ""  # why the text was left out, where the caller wants no output below some confidence
    origin: Origin | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        more = f", {len(self.alternatives)} alternatives" if self.alternatives else ""
        sure = "" if self.confidence is None else f", confidence={self.confidence:.3f}"
        return f"Prediction({self.text!r}, score={self.score:.4f}{sure}{more})"

    @property
    def from_memory(self) -> bool:
        """Whether a translation memory had this very source."""
        return self.memory is not None and self.memory.score == 1.0

    @property
    def probability(self) -> float:
        """The probability of the whole output, <eos> included."""
        return math.exp(sum(self.token_scores))

    @property
    def token_probabilities(self) -> tuple[float, ...]:
        """The probability of each token given those before it, <eos> included."""
        return tuple(math.exp(score) for score in self.token_scores)

    def _repr_html_(self) -> str:
        return str(terminal.pictures().prediction_html(self))

    def as_json(self, *, probability: bool = False) -> str:
        """One JSON object on one line, with the probability of every output if `probability`."""
        return json.dumps(self.as_table(probability=probability), ensure_ascii=False)

    def as_table(self, *, probability: bool = False) -> dict[str, object]:
        """A dictionary of the fields that this prediction has."""
        table = {own.name: getattr(self, own.name) for own in fields(self) if own.name != "origin"}
        if probability:
            table["probability"] = self.probability
        if self.confidence is None:
            del table["confidence"], table["token_confidences"]
        if self.memory is None:
            del table["memory"]
        else:
            table["memory"] = self.memory._asdict()
        if not self.refused:
            del table["refused"]
        if not self.alternatives:
            del table["alternatives"]
        else:
            table["alternatives"] = [other.as_table(probability=probability) for other in self.alternatives]
        return table


NO_PREDICTION = Prediction("", 0.0, (), ())  # of an empty or unreadable input


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
