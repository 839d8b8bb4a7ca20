"""The options of a command follow from the record of its verb."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import click
import pytest
from click.testing import CliRunner

from dragoman.base.config import Range, setting
from dragoman.base.errors import ConfigError, on_command_line
from dragoman.commands.from_record import options_of


@dataclass(frozen=True)
class Paint:
    """An example of a record."""

    output: str = setting(help="the picture", flag="-o --output")
    colour: Literal["red", "blue"] = setting("red", help="colour of the wall", flag="--colour")
    coats: Annotated[int, Range(1, 9)] | None = setting(None, help="number of coats [default: 2]", flag="--coats")
    gloss: Annotated[float, Range(0.0, 1.0, exclusive_minimum=True)] = setting(0.5, help="shine", flag="--gloss")
    over: tuple[str, ...] = setting((), help="paint over LISTING", flag="--over", listing=lambda: "wood, stone")
    quick: bool = setting(False, help="do not wait", flag="--quick")
    hidden: int = setting(3, help="only Python has it")

    def problems(self) -> Iterator[str]:
        if self.quick and self.coats == 9:
            yield "coats: found 9, expected fewer with --quick"


painted: list[Paint] = []


@click.command()
@click.argument("wall")
@options_of(Paint, "paint")
def command(wall: str, paint: Paint) -> None:
    painted.append(paint)


def test_the_command_gets_the_record() -> None:
    words = ["north", "-o", "a.png", "--coats", "3", "--gloss", "1", "--over", "wood", "--over", "stone", "--quick"]
    assert CliRunner().invoke(command, words).exit_code == 0
    assert painted.pop() == Paint("a.png", "red", 3, 1.0, ("wood", "stone"), True)
    assert CliRunner().invoke(command, ["north", "--output", "b.png"]).exit_code == 0
    assert painted.pop() == Paint("b.png")


def test_the_help_says_what_the_record_says() -> None:
    text = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    for part in ("The picture.", "[red|blue] Colour of the wall.", "Number of coats [default: 2]", "over wood, stone "):
        assert part in text
    assert "1<=x<=9" in text
    assert "0.0<x<=1.0" in text
    assert "hidden" not in text


@pytest.mark.parametrize(
    "words", [[], ["-o", "x", "--coats", "10"], ["-o", "x", "--gloss", "0"], ["-o", "x", "--colour", "green"]]
)
def test_wrong_values_are_errors_of_usage(words: list[str]) -> None:
    result = CliRunner().invoke(command, ["north", *words])
    assert result.exit_code == 2
    assert not painted


def test_problems_of_the_record_name_the_flag() -> None:
    with on_command_line():
        result = CliRunner().invoke(command, ["north", "-o", "x", "--coats", "9", "--quick"])
        assert isinstance(result.exception, ConfigError)
        assert str(result.exception) == "--coats: found 9, expected fewer with --quick"
