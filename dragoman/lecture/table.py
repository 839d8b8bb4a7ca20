"""What a row of the table of topics holds: a figure, the command that draws it, a question with its answer."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Answer:
    """The right answer to a question and why; with `others` the reader chooses, without them types a number."""

    right: str | float
    why: str
    others: tuple[str, ...] = ()
    digits: int = 0  # decimals of a number, which decide what counts as right

    @property
    def text(self) -> str:
        return self.right if isinstance(self.right, str) else f"{self.right:,.{self.digits}f}"

    def __str__(self) -> str:
        return f"{self.text}: {self.why}"


@dataclass(frozen=True)
class Numbers:
    """The numbers behind a figure, from which its answer is computed."""

    data: Any  # as JSON: of the page, or what the command `Figure.numbers` prints or writes
    folder: Path

    def view(self, kind: str, beside: bool = False) -> Any:
        """The data of a view; tensors are arrays."""
        shown = self.data["beside"] if beside else self.data
        return unpacked(next(view["data"] for view in shown["views"] if view["kind"] == kind))


@dataclass(frozen=True)
class Figure:
    """One row: what the figure shows, the command that draws it in the folder of the lecture, and a question."""

    title: str
    command: str  # as a user types it, without "dragoman"
    question: str
    compute: Callable[[Numbers], Answer]
    numbers: str = ""  # the command behind the numbers; default: they are in the page, or `inspect` writes them
    slow: bool = False  # it takes minutes, so `dragoman lecture` draws it only if it is asked to

    @cached_property
    def words(self) -> list[str]:
        return shlex.split(self.command)

    @property
    def file(self) -> str | None:
        """The file that the command writes; None: it prints its result."""
        for option in ("-o", "--output", "--plot"):
            if option in self.words:
                return self.words[self.words.index(option) + 1]
        return None

    @property
    def name(self) -> str:
        """The name of the figure: that of its file, or made of its command."""
        return self.file or re.sub(r"\W+", "-", self.command).strip("-") + ".txt"

    @property
    def runs(self) -> list[str]:
        return [word.removeprefix("runs/") for word in self.words if word.startswith("runs/")]


@dataclass(frozen=True)
class DrawnFigure:
    """A figure as it was drawn: its command, its file or text, and the question with its answer."""

    title: str
    command: str
    file: str | None
    text: str
    question: str
    answer: Answer

    @classmethod
    def of(cls, row: dict[str, Any]) -> DrawnFigure:
        answer = row["answer"]
        return cls(**{**row, "answer": Answer(**{**answer, "others": tuple(answer["others"])})})


@dataclass(frozen=True)
class Topic:
    """A part of a course: its figures, and notes for who teaches it."""

    name: str
    title: str
    about: str
    ask: tuple[str, ...]  # questions that start a discussion
    mistakes: tuple[str, ...]  # what students often get wrong
    figures: tuple[Figure, ...]

    @property
    def runs(self) -> list[str]:
        return list(dict.fromkeys(run for figure in self.figures for run in figure.runs))


def unpacked(value: Any) -> Any:
    """Data of a page with its packed tensors as arrays."""
    if isinstance(value, dict):
        if "f32" in value:
            return np.frombuffer(base64.b64decode(value["f32"]), "<f4").reshape(value["shape"])
        return {key: unpacked(inner) for key, inner in value.items()}
    return [unpacked(inner) for inner in value] if isinstance(value, list) else value


def choose(right: str, others: list[str] | tuple[str, ...], why: str, most: int = 4) -> Answer:
    """One of several, each once."""
    wrong = [other for other in dict.fromkeys(others) if other != right]
    return Answer(right, why, tuple(wrong[: most - 1]))


def largest(values: dict[str, float], why: str, unit: str = "") -> Answer:
    """The name with the largest value; `why` says what was compared."""
    order = sorted(values, key=lambda name: -values[name])
    shown = ", ".join(f"{name}: {values[name]:,.3g}{unit}" for name in order[:4])
    return choose(order[0], order[1:], f"{why} {shown}.")
