"""Worked numbers: the calculations of the field's textbooks, each with the library's own functions and its steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dragoman.base import ConfigError, hint
from dragoman.base.config import as_table, build, describe, override, setting
from dragoman.lecture import worked_networks, worked_probabilities, worked_texts
from dragoman.lecture.toys import TOYS, write_toys
from dragoman.lecture.worked_example import Calculation, Worked

Values: TypeAlias = Mapping[str, object] | Sequence[str]
WORKED: dict[str, type[Calculation]] = {
    one.name: one
    for one in (*worked_networks.CALCULATIONS, *worked_probabilities.CALCULATIONS, *worked_texts.CALCULATIONS)
}


@dataclass(frozen=True)
class WorkedOptions:
    """What `worked` writes beside the steps."""

    page: str | None = setting(
        None, flag="--page", metavar="FILE",
        help="write a page (.html) to type numbers into, which opens at the calculation with your values",
    )  # fmt: skip


def worked(name: str, values: Values = (), options: WorkedOptions = WorkedOptions()) -> Worked:  # noqa: B008  (frozen)
    """Work out a textbook's numbers, or your own: `worked("viterbi", {"seen": ("dizzy", "cold")})`.

    `values` replace those of the textbook, as a mapping or as texts such as "seen=dizzy,cold". `worked_names()` lists
    the calculations.
    """
    calculation = calculation_of(name, values)
    if options.page is not None:
        if name not in TOYS:
            raise ConfigError(f"--page: the page has no {name}; it has {', '.join(TOYS)}")
        write_toys(options.page, calculation)
    return dataclasses.replace(calculation.work(), name=name, settings=as_table(calculation))


def calculation_of(name: str, values: Values = ()) -> Calculation:
    """The numbers that a calculation begins with, checked."""
    if name not in WORKED:
        raise ConfigError(f"no such calculation '{name}'. {hint(name, WORKED)}")
    return build(WORKED[name], values if isinstance(values, Mapping) else override({}, list(values)))


def worked_names() -> dict[str, str]:
    """Every calculation with what it computes."""
    return {name: (one.__doc__ or "").partition("\n")[0] for name, one in WORKED.items()}


def worked_settings(name: str) -> list[str]:
    """The values of a calculation that a reader may replace, a line each."""
    return [f"{one.place}: {one.note} [default: {one.default}]" for one in describe(type(calculation_of(name)))]
